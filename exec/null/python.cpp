// The interpreter of the process, where there is one: its functions are looked up by name, so that
// the null GPU needs no Python to build or to run.
#include <dlfcn.h>

#include <string>

#include "exec/null/abi.h"
#include "exec/null/device.h"
#include "exec/null/log.h"
#include "exec/null/record.h"

namespace foreshard::null {
namespace {

using Object = void*;

struct Python {
  int (*is_initialized)() = nullptr;
  int (*ensure)() = nullptr;
  void (*leave)(int) = nullptr;
  Object (*frame)() = nullptr;
  Object (*back)(Object) = nullptr;
  Object (*code)(Object) = nullptr;
  int (*line)(Object) = nullptr;
  Object (*attribute)(Object, const char*) = nullptr;
  const char* (*text)(Object) = nullptr;
  void (*drop)(Object) = nullptr;
  void (*keep)(Object) = nullptr;
  bool complete() const {
    return is_initialized != nullptr && ensure != nullptr && leave != nullptr && frame != nullptr && back != nullptr &&
           code != nullptr && line != nullptr && attribute != nullptr && text != nullptr && drop != nullptr &&
           keep != nullptr;
  }
};

template <typename Function>
void find(Function& function, const char* name) {
  function = reinterpret_cast<Function>(dlsym(RTLD_DEFAULT, name));
}

const Python& python() {
  static const Python p = [] {
    Python made;
    find(made.is_initialized, "Py_IsInitialized");
    find(made.ensure, "PyGILState_Ensure");
    find(made.leave, "PyGILState_Release");
    find(made.frame, "PyEval_GetFrame");
    find(made.back, "PyFrame_GetBack");
    find(made.code, "PyFrame_GetCode");
    find(made.line, "PyFrame_GetLineNumber");
    find(made.attribute, "PyObject_GetAttrString");
    find(made.text, "PyUnicode_AsUTF8");
    find(made.drop, "Py_DecRef");
    find(made.keep, "Py_IncRef");
    return made;
  }();
  return p;
}

std::string attribute_text(const Python& p, Object of, const char* name) {
  Object const value = p.attribute(of, name);
  if (value == nullptr) return "";
  const char* const text = p.text(value);
  const std::string result = text == nullptr ? "" : text;
  p.drop(value);
  return result;
}

constexpr int kMostFrames = 12;

// How PyTorch calls a dispatch mode in Python.
bool is_of_mode(const std::string& file) {
  return file.ends_with("/torch/_ops.py") || file.ends_with("/torch/_compile.py") ||
         file.ends_with("/torch/_dynamo/eval_frame.py");
}

}

std::string python_place() {
  const Python& p = python();
  if (!p.complete() || p.is_initialized() == 0) return "";
  const int held = p.ensure();
  std::string places;
  Object frame = p.frame();  // borrowed
  if (frame != nullptr) p.keep(frame);
  for (int depth = 0; frame != nullptr && depth < kMostFrames; ++depth) {
    Object const code = p.code(frame);
    const std::string file = attribute_text(p, code, "co_filename");
    if (file.find("/python/foreshard_") != file.npos) {  // what is inside of it is its own
      places.clear();
      depth = -1;
    } else if (!places.empty() || !is_of_mode(file)) {
      if (!places.empty()) places += " < ";
      places += file + ':' + std::to_string(p.line(frame)) + ' ' + attribute_text(p, code, "co_name");
    }
    p.drop(code);
    Object const back = p.back(frame);
    p.drop(frame);
    frame = back;
  }
  if (frame != nullptr) p.drop(frame);
  p.leave(held);
  return places;
}

}

// A line of the process' own between its calls: "step 3", "group default_pg 0 1 2".
API void foreshard_null_mark(const char* text) {
  const std::int64_t name = foreshard::null::name_id(text);
  foreshard::null::Line('H') << name;
}
API void foreshard_null_forget_time() { foreshard::null::forget_time(); }
API void foreshard_null_flush() { foreshard::null::flush_log(); }

// What device memory holds, where that is known (1), and what it is to hold.
API int foreshard_null_known(const void* at, void* to, std::size_t bytes) {
  return foreshard::null::known_bytes(to, at, bytes) ? 1 : 0;
}
API void foreshard_null_know(void* at, const void* from, std::size_t bytes) {
  foreshard::null::copy_bytes(at, from, bytes);
}
API void foreshard_null_forget(const void* at, std::size_t bytes) { foreshard::null::forget(at, bytes); }
// An operation whose writes are told follows; of the time since the last call so much is not the program's.
API void foreshard_null_begin_operation(std::int64_t ns) {
  foreshard::null::begin_told_operation();
  foreshard::null::skip_time(ns);
}
API void foreshard_null_end_operation(std::int64_t ns) {
  foreshard::null::end_told_operation();
  foreshard::null::skip_time(ns);
}
// What this thread's next read of a number that nobody computed is to say, until the operation's end.
API void foreshard_null_answer(std::int64_t value) { foreshard::null::answer_next_read(value); }
