// The capture's log, calls.txt: one line per call in the order in which the process made them.
//
// A line is a letter and numbers, separated by spaces; names are interned by lines `N id text`. docs/capture.md has the
// letters. Every line but those of names has, after its letter, the processor time in nanoseconds that its thread used
// since its previous line (what the recorder itself takes is left out) and the thread's number in order of appearance.
//
// State of the process lies below this folder's functions: CUDA's own interface is global.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace foreshard::null {

// A line being written; at the end of its life it is in the log. Holds the log's lock.
class Line {
 public:
  explicit Line(char kind);
  ~Line();
  Line& operator=(Line&&) = delete;  // nor is it copied
  Line& operator<<(std::int64_t number);
  Line& operator<<(std::uint64_t number) { return *this << static_cast<std::int64_t>(number); }
  Line& operator<<(int number) { return *this << std::int64_t{number}; }
  Line& operator<<(unsigned number) { return *this << std::int64_t{number}; }
};

// While one lives, its thread's time is the recorder's own: the next line's host time ends where it began.
class Recording {
 public:
  Recording();
  ~Recording();
  Recording& operator=(Recording&&) = delete;  // nor is it copied

 private:
  bool is_outermost_;
};

// The number of a name; its line is written where it is new.
std::int64_t name_id(std::string_view text);
std::string name_text(std::int64_t id);
// A handle's number: small, in order of appearance, the null handle is 0.
std::int64_t handle_id(const void* handle);

// Work written down between these goes to the graph, not to the log (a CUDA graph being captured of
// `stream`), and from there into the log whenever it is launched: on the launching stream instead
// of the captured one, by the launching thread, without time of the host.
void begin_graph(const void* stream);
std::int64_t end_graph();  // its number
void launch_graph(std::int64_t graph, const void* stream);

// A line V.
void log_fault(std::string_view what);

// What the thread did since its last line is the recorder's own.
void forget_time();
void skip_time(std::int64_t ns);  // that much of it

void flush_log();

// A line on standard error.
void say(std::string_view what);

// Says on standard error what cannot be answered, notes it in the capture, and ends the process with exit status 6.
[[noreturn]] void refuse(std::string_view what);

}
