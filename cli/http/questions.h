// A request as the command line of a verb, and the verb's answer: what may be asked over HTTP.
//
// Words are the verb's options without dashes (micro_batch: --micro-batch). Files come with the
// request and never from the machine: an option that takes a file is filled by a part of the body,
// and what names a model or a cluster in words may not look like a path.
#pragma once

#include <string>

#include "cli/http/server.h"
#include "sim/base/error.h"
#include "sim/base/json.h"

namespace foreshard {

// Of /api/VERB (the verb's JSON), /text/VERB (its text), /page/VERB (the document of a report's
// page) and /report (the page).
bool is_question(const std::string& path);
std::string known_paths();  // for a refusal

HttpLane lane_of(const HttpQuestion& question);

// In a process and a folder of its own: it writes the request's files there. `threads` of a search;
// 0: all cores. Throws std::bad_alloc and nothing else.
HttpAnswer answer_question(const HttpQuestion& question, int threads);

HttpAnswer http_refusal(int status, const std::string& what, ExitCode code);

// What may be asked, with what completes it: {verb: {word: {help, words}}}.
Json words_json();

}
