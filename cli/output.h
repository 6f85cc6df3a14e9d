// Where answers go: standard output holds the answer and nothing else, notes go to standard error.
//
// A reader that closes early (`| head`) is no failure. A full disk or a file that cannot be written
// is an Error(kInvalidInput) that names the file, which is then as it was before.
#pragma once

#include <string>
#include <string_view>

#include "planner/options.h"
#include "reports/view/views.h"
#include "sim/base/json.h"

namespace foreshard {

// 0, or the errno of the write that failed.
int write_all(int file, std::string_view text);
void write_answer(std::string_view text);
// Text for people: on a terminal it follows the width (COLUMNS, else the terminal's own); in a pipe
// and in a file it is as it is, nothing cut.
void write_text(std::string_view text);
void write_file(const std::string& path, std::string_view text);

// To standard error as it is; and as one line after the program's name.
void write_error(std::string_view text);
void note(std::string_view text);

// While it lives, what this thread would write to standard output and standard error is kept
// instead: for programs that call verbs as functions (python/). Captures nest.
class AnswerCapture {
 public:
  AnswerCapture();
  ~AnswerCapture();
  AnswerCapture& operator=(AnswerCapture&&) = delete;  // nor is it copied

  std::string answer, errors;

 private:
  AnswerCapture* outer_;
};

// kAuto: colours on a terminal, unless NO_COLOR is set or TERM is "dumb".
Color color_of(ColorChoice choice);

// The document as text. After its `schema` (`schema` where it has none) come the keys tool, created (UTC;
// SOURCE_DATE_EPOCH is honoured) and host; apart from these the same inputs give the same bytes.
std::string document(std::string_view schema, const Json& body);
// The same, not yet as text.
Json document_json(std::string_view schema, const Json& body);

// What a program says of the exception being handled: one sentence to standard error.
ExitCode report_failure();

}
