// Lines are appended to a buffer that is written out when it is large, at exit, and before the process is refused
// anything. A forked child (data loaders, compilers' workers) writes nothing: its calls are not the training process'.
#include "exec/null/log.h"

#include <fcntl.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <unordered_map>
#include <utility>
#include <vector>

#include "exec/null/state.h"

namespace foreshard::null {
namespace {

constexpr std::size_t kWriteAt = std::size_t{1} << 20;

std::int64_t processor_ns() {
  timespec t{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return std::int64_t{t.tv_sec} * 1'000'000'000 + t.tv_nsec;
}

// Of a graph; the first number of work is its stream.
struct GraphLine {
  char kind;
  std::string numbers;
};
struct Graph {
  const void* origin = nullptr;  // the stream that was captured
  std::vector<GraphLine> lines;
};
// What a graph does whenever it is launched: work and, of a graph that holds an optimizer's step,
// marks. All else (allocations) is done once, while it is captured.
bool is_of_graph(char kind) { return std::strchr("LGACXEWH", kind) != nullptr; }

// What reading the clock adds to the time between two readings.
std::int64_t clock_cost() {
  static const std::int64_t least = [] {
    std::int64_t found = std::int64_t{1} << 40;
    for (int i = 0; i < 100; ++i) {
      const std::int64_t before = processor_ns();
      found = std::min(found, processor_ns() - before);
    }
    return found;
  }();
  return least;
}

struct State {
  std::recursive_mutex mutex;
  std::string buffer;
  int file = -1;
  bool opened = false;
  pid_t owner = 0;
  std::int64_t threads = 0;
  std::unordered_map<std::string, std::int64_t> names;
  std::vector<const std::string*> texts;  // of names
  std::unordered_map<const void*, std::int64_t> handles;
  std::vector<Graph> graphs;
  bool capturing = false;
  bool line_is_of_graph = false;  // the line being written
  std::string line;               // of a graph: its numbers
};
// Never destroyed: libraries call while the process ends.

thread_local std::int64_t thread_number = -1;
thread_local std::int64_t left_at = 0;     // processor time at which the recorder returned
thread_local std::int64_t entered_at = 0;  // and was called; 0: it is not recording

std::string folder() {
  const char* out = std::getenv("FORESHARD_NULL_OUT");
  return out == nullptr ? "" : out;
}

void write_all(int file, std::string_view text) {
  while (!text.empty()) {
    const ssize_t n = ::write(file, text.data(), text.size());
    if (n <= 0) return;
    text.remove_prefix(static_cast<std::size_t>(n));
  }
}

// The first process that records has the log.
void open_log(State& s) {
  s.opened = true;
  s.owner = getpid();
  if (folder().empty()) return;
  s.file = ::open((folder() + "/calls.txt").c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
  if (s.file >= 0) std::atexit(flush_log);
}

void append(std::string& text, std::int64_t number) {
  char digits[24];
  const auto end = std::to_chars(digits, digits + sizeof digits, number);
  text.append(digits, static_cast<std::size_t>(end.ptr - digits));
}

void append_name(State& s, std::int64_t id, std::string_view text) {
  s.buffer += "N ";
  append(s.buffer, id);
  s.buffer += ' ';
  for (const char c : text) s.buffer += c == '\n' ? ' ' : c;
  s.buffer += '\n';
}

std::string& target(State& s) { return s.line_is_of_graph ? s.line : s.buffer; }

}

Recording::Recording() : is_outermost_(entered_at == 0) {
  if (is_outermost_) entered_at = processor_ns();
}
Recording::~Recording() {
  if (!is_outermost_) return;
  entered_at = 0;
  if (left_at != 0) left_at = processor_ns();
}

Line::Line(char kind) {
  const std::int64_t now = entered_at != 0 ? entered_at : processor_ns();
  State& s = state<State>();
  s.mutex.lock();
  if (!s.opened) open_log(s);
  if (thread_number < 0) thread_number = s.threads++;
  s.line_is_of_graph = s.capturing && is_of_graph(kind);
  if (s.line_is_of_graph) {
    s.graphs.back().lines.push_back({kind, ""});
    s.line.clear();
    return;
  }
  s.buffer += kind;
  *this << (left_at == 0 ? 0 : std::max<std::int64_t>(0, now - left_at - clock_cost())) << thread_number;
  // Behind the first line of a recording there is nothing of the program's.
  if (entered_at != 0) left_at = entered_at;
}

Line& Line::operator<<(std::int64_t number) {
  std::string& text = target(state<State>());
  text += ' ';
  append(text, number);
  return *this;
}

Line::~Line() {
  State& s = state<State>();
  if (std::exchange(s.line_is_of_graph, false)) s.graphs.back().lines.back().numbers = s.line;
  else s.buffer += '\n';
  if (s.file < 0 || getpid() != s.owner) {
    s.buffer.clear();
  } else if (s.buffer.size() > kWriteAt) {
    write_all(s.file, s.buffer);
    s.buffer.clear();
  }
  s.mutex.unlock();
  if (entered_at == 0) left_at = processor_ns();
}

std::int64_t name_id(std::string_view text) {
  const Held<State> s;
  if (!s->opened) open_log(*s);
  const auto [at, is_new] = s->names.emplace(text, static_cast<std::int64_t>(s->names.size()));
  if (is_new) {
    append_name(*s, at->second, text);
    s->texts.push_back(&at->first);
  }
  return at->second;
}

std::string name_text(std::int64_t id) {
  const Held<State> s;
  return id < 0 || id >= static_cast<std::int64_t>(s->texts.size()) ? "" : *s->texts[static_cast<std::size_t>(id)];
}

std::int64_t handle_id(const void* handle) {
  if (handle == nullptr) return 0;
  const Held<State> s;
  return s->handles.emplace(handle, static_cast<std::int64_t>(s->handles.size()) + 1).first->second;
}

void begin_graph(const void* stream) {
  const Held<State> s;
  s->graphs.push_back({stream, {}});
  s->capturing = true;
}

std::int64_t end_graph() {
  const Held<State> s;
  s->capturing = false;
  return static_cast<std::int64_t>(s->graphs.size()) - 1;
}

void launch_graph(std::int64_t number, const void* stream) {
  const Held<State> s;
  if (number < 0 || number >= static_cast<std::int64_t>(s->graphs.size())) return;
  const Graph& graph = s->graphs[static_cast<std::size_t>(number)];
  const std::int64_t origin = handle_id(graph.origin), now = handle_id(stream);
  { Line('P') << number << static_cast<std::int64_t>(graph.lines.size()); }
  for (const GraphLine& line : graph.lines) {
    // The numbers begin with a space.
    const std::size_t end = std::min(line.numbers.find(' ', 1), line.numbers.size());
    std::int64_t of = 0;
    std::from_chars(line.numbers.data() + 1, line.numbers.data() + end, of);
    s->buffer += line.kind;
    s->buffer += " 0 ";
    append(s->buffer, thread_number);
    s->buffer += ' ';
    append(s->buffer, of == origin && line.kind != 'H' ? now : of);
    s->buffer.append(line.numbers, end);
    s->buffer += '\n';
  }
}

void log_fault(std::string_view what) {
  const Held<State> s;
  const std::int64_t name = name_id(what);
  Line('V') << name;
}

void forget_time() { left_at = processor_ns(); }
void skip_time(std::int64_t ns) {
  if (left_at != 0) left_at += ns;
}

void flush_log() {
  const Held<State> s;
  if (s->file < 0 || getpid() != s->owner) return;
  write_all(s->file, s->buffer);
  s->buffer.clear();
}

namespace {
std::string message(std::string_view what) { return "foreshard-null: " + std::string(what) + "\n"; }
}

void say(std::string_view what) { write_all(STDERR_FILENO, message(what)); }

void refuse(std::string_view what) {
  flush_log();
  say(what);
  if (!folder().empty()) {
    const int file = ::open((folder() + "/refused.txt").c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
    if (file >= 0) write_all(file, message(what));
  }
  _exit(6);
}

}
