// A RankRecord as bytes, for rank 0 to collect.
#pragma once

#include <string>
#include <string_view>

#include "reports/validate/run_record.h"

namespace foreshard {

std::string to_bytes(const RankRecord& record);
RankRecord rank_record_of(std::string_view bytes);  // of the same program

}  // namespace foreshard
