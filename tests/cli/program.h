// Runs the built program as a user does, through a shell.
#pragma once

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

namespace foreshard {

struct Outcome {
  int exit_code = -1;  // of the shell: 128 + number for a signal
  std::string out;
  std::string err;
};

// `command` in a shell, in which $F is the program; it runs in a folder of its own, whose files
// stay until the test ends.
Outcome shell(const std::string& command);
// The program with these arguments.
inline Outcome run(const std::string& arguments) { return shell("\"$F\" " + arguments); }

// A file in the folder of this test; returns its path.
std::string write_temporary(const std::string& name, std::string_view content);
std::string read_temporary(const std::string& name);

// Exactly one JSON document. Fails the test where it is none.
nlohmann::ordered_json json_of(const Outcome& outcome);
// What Python's jsonschema says of the document by the schema that the program has for it
// (foreshard schema, by the name in the document's key `schema`): that it is one, and that it is
// none without any of the keys that the schema requires. Nothing where jsonschema is not installed.
void expect_follows_its_schema(const nlohmann::ordered_json& document);
// Without what may differ between two runs.
std::string comparable(const Outcome& outcome);

std::size_t lines_of(std::string_view text);

// `text` has the part; shows the text where it has not.
void expect_says(std::string_view text, std::string_view part);
// The marks of a crash are nowhere.
void expect_no_crash(const Outcome& outcome);

}
