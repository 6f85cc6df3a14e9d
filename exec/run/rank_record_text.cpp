// The bytes of its parts one after the other; both sides are the same program on the same kind of
// machine.
#include "exec/run/rank_record_text.h"

#include <cstring>
#include <type_traits>
#include <utility>

#include "sim/base/error.h"

namespace foreshard {
namespace {

template <typename Io, typename Value>
void each_part(Io& io, Value& value) {
  using Plain = std::remove_const_t<Value>;
  if constexpr (std::is_same_v<Plain, RankRecord>) {
    io(value.rank, value.clocks_shared, value.step_durations, value.timelines);
    io(value.rss_before_init, value.rss_after_init, value.peak_rss, value.arena);
    io(value.activations_peak, value.device_reserved, value.device_used);
  } else if constexpr (std::is_same_v<Plain, MeasuredStep>) {
    io(value.step, value.begin, value.duration, value.spans);
  } else if constexpr (std::is_trivially_copyable_v<Plain>) {
    io.bytes(&value, sizeof value);
  } else {
    std::size_t size = value.size();
    io(size);
    if constexpr (!std::is_const_v<Value>) value.resize(size);
    for (auto& each : value) each_part(io, each);
  }
}

struct Writer {
  template <typename... Values>
  void operator()(const Values&... values) {
    (each_part(*this, values), ...);
  }
  void bytes(const void* from, std::size_t size) {
    out.append(static_cast<const char*>(from), size);
  }
  std::string out;
};

struct Reader {
  template <typename... Values>
  void operator()(Values&... values) {
    (each_part(*this, values), ...);
  }
  void bytes(void* to, std::size_t size) {
    FORESHARD_CHECK(in.size() >= size, "a rank's record is cut off");
    std::memcpy(to, in.data(), size);
    in.remove_prefix(size);
  }
  std::string_view in;
};

}  // namespace

std::string to_bytes(const RankRecord& record) {
  Writer writer;
  writer(record);
  return std::move(writer.out);
}

RankRecord rank_record_of(std::string_view bytes) {
  RankRecord record;
  Reader{bytes}(record);
  return record;
}

}  // namespace foreshard
