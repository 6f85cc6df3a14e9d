// Tables of training steps as people publish them: a model's and a GPU's name, degrees of the axes
// and words for the rest, which become rows of the grammar (training_rows.h).
//
// Columns: model gpu n_gpus seq micro_batch global_batch dp_replicate dp_shard tp cp pp ep etp
// recompute dtype compile async_tp sequence_parallel dispatcher overlap runtime; of a part of a
// model its layers, of one that the zoo has not arch layers d_model heads kv_heads d_ff vocabulary
// tied; measured: tokens_per_s_per_gpu step_s memory_gib.
#pragma once

#include <cstddef>

#include "calibration/csv_table.h"
#include "interop/steps/training_rows.h"

namespace foreshard {

// Whether the table is one: it has model, gpu, n_gpus, seq, tp and a measured column.
bool is_published_table(const CsvTable& table);

// What a word leaves open stays unpublished; a word that names what is not modelled is the row's
// `refusal`. The id: that of the column, else the runtime's first word and the line.
TrainingRow published_row(const CsvTable& table, std::size_t index);

}  // namespace foreshard
