// What the host is doing, and for which unit, while the builder of runtime fsdp2 runs one of its
// methods: what the log's rows name as their unit and cause.
#pragma once

#include <string_view>

#include "sim/graph/fsdp2/fsdp2_builder.h"

namespace foreshard {

class Fsdp2Scope {
 public:
  Fsdp2Scope(Fsdp2& builder, std::string_view where, std::int32_t unit)
      : builder_(builder), unit_(builder.log_unit_), where_(builder.log_where_) {
    builder.log_unit_ = unit;
    builder.log_where_ = where;
  }
  ~Fsdp2Scope() { leave(); }
  Fsdp2Scope(const Fsdp2Scope&) = delete;
  Fsdp2Scope& operator=(const Fsdp2Scope&) = delete;
  void leave() {
    builder_.log_unit_ = unit_;
    builder_.log_where_ = where_;
  }

 private:
  Fsdp2& builder_;
  std::int32_t unit_;
  std::string_view where_;
};

}
