#include "sim/spec/fsdp2_version.h"

#include "sim/base/error.h"
#include "sim/base/parse.h"

namespace foreshard {

std::optional<std::int32_t> fsdp2_minor(std::string_view version) {
  if (!version.starts_with("2.")) return std::nullopt;
  version.remove_prefix(2);
  const std::size_t dot = version.find('.');
  if (dot != std::string_view::npos) {
    const std::string_view patch = version.substr(dot + 1);
    if (patch.empty() || patch.find_first_not_of("0123456789") != std::string_view::npos) return std::nullopt;
    version = version.substr(0, dot);
  }
  const auto minor = parse_number<std::int32_t>(version);
  if (!minor || *minor < kOldestFsdp2 || *minor > kNewestFsdp2) return std::nullopt;
  return minor;
}

Fsdp2Version fsdp2_version(std::int32_t minor) {
  FORESHARD_CHECK(minor >= kOldestFsdp2 && minor <= kNewestFsdp2, "not a version of fully_shard");
  Fsdp2Version v = {.minor = minor};
  v.casts_one_by_one = minor <= 4;                    // 2.4.1 pa:551; 2.5.1 co:137
  v.packs_on_reduce_stream = minor <= 4;              // 2.4.1 co:171-179; 2.5.1 pg:367-371
  v.keeps_last_gradient = minor >= 6 && minor <= 14;  // 2.6.0 co:358; 2.15.0 co:578-600
  v.holds_all_reduce_input = minor >= 6;              // 2.6.0 pg:440
  v.waits_own_reduction = minor >= 6;                 // 2.6.0 pg:440
  v.clips_one_norm = minor <= 8;                      // recorded up to 2.8 and from 2.11 on
  v.drops_stray_gathers = minor >= 6;                 // 2.6.0 pg:451
  v.root_may_reshard = minor >= 8;                    // 2.8.0 st:183
  v.gathers_alone = minor <= 8;                       // 2.9.1 pg:316
  v.averages_alone = minor <= 8;
  v.reduces_alone = minor <= 9;                       // 2.10.0 co:546
  v.frees_gather_before_copy_out = minor >= 15;       // 2.15.0 pg:518, 145; st:368
  v.autograd_accumulates = minor >= 15;               // 2.15.0 pg:934, pa:1163
  v.reduces_in_stored_dtype = minor >= 15;            // 2.15.0 pa:1163, pg:953
  v.leftovers_first = minor >= 15;                    // 2.15.0 st:436-455, 547
  v.visits_lists_once = minor >= 12;                  // 2.12.1 st:193
  v.completes_lists = minor >= 15;                    // 2.15.0 st:399
  v.recompute_reshards = minor <= 9;                  // 2.10.0 pg:460
  v.partial_waits_before_pack = minor >= 15;          // 2.15.0 pg:794
  v.exchanges_in_pairs = minor >= 12 && minor <= 14;  // schedules.py, _batch_p2p; 2.15.0: NCCL's group is made at once
  v.receives_late = minor >= 15;                      // 2.15.0 _recv_buffers.py; stage.py
  v.end_waits = minor >= 15   ? EndWaits::kOnceBeforehand  // 2.15.0 st:547-551
                : minor >= 13 ? EndWaits::kLastPerStream   // 2.13.0 pg:764
                              : EndWaits::kPerUnit;
  v.leftovers = minor >= 7   ? Leftovers::kAll                        // 2.7.1 st:283
                : minor == 6 ? Leftovers::kUnshardedOrNotGathered     // 2.6.0 st:292
                             : Leftovers::kUnsharded;                 // 2.4.1 st:214
  v.input_release = minor >= 13   ? InputRelease::kQueue              // 2.13.0 pg:648-658
                    : minor == 12 ? InputRelease::kAfterPostBackward  // 2.12.1 pg:551-562
                                  : InputRelease::kAtReduction;       // 2.8.0 pg:426
  return v;
}

}
