// The verb that names the fact to find out next.
#include "planner/ask.h"

#include <nlohmann/json.hpp>

#include "cli/output.h"
#include "cli/verbs/verbs.h"
#include "planner/job.h"

namespace foreshard {

ExitCode run_ask(const AskOptions& options) {
  const Questions asked = questions(load_job(options.job));
  if (options.output.form == Form::kJson) write_answer(document("foreshard.questions/1", to_json(asked)));
  else write_text(questions_text(asked));
  return ExitCode::kOk;
}

}
