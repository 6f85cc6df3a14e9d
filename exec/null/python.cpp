// The interpreter of the process, where there is one: its functions are looked up by name, so that
// the null GPU needs no Python to build or to run.
#include <dlfcn.h>

#include <string>

#include "exec/null/abi.h"
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
    return is_initialized != nullptr && ensure != nullptr && leave != nullptr && frame != nullptr &&
           back != nullptr && code != nullptr && line != nullptr && attribute != nullptr &&
           text != nullptr && drop != nullptr && keep != nullptr;
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

}  // namespace

std::string python_place() {
  const Python& p = python();
  if (!p.complete() || p.is_initialized() == 0) return "";
  const int held = p.ensure();
  std::string places;
  Object frame = p.frame();  // borrowed
  if (frame != nullptr) p.keep(frame);
  for (int depth = 0; frame != nullptr && depth < kMostFrames; ++depth) {
    Object const code = p.code(frame);
    if (!places.empty()) places += " < ";
    places += attribute_text(p, code, "co_filename") + ':' + std::to_string(p.line(frame)) + ' ' +
              attribute_text(p, code, "co_name");
    p.drop(code);
    Object const back = p.back(frame);
    p.drop(frame);
    frame = back;
  }
  if (frame != nullptr) p.drop(frame);
  p.leave(held);
  return places;
}

}  // namespace foreshard::null

// A line of the process' own between its calls: "step 3", "group default_pg 0 1 2".
FORESHARD_NULL_API void foreshard_null_mark(const char* text) {
  const std::int64_t name = foreshard::null::name_id(text);
  foreshard::null::Line('H') << name;
}
FORESHARD_NULL_API void foreshard_null_forget_time() { foreshard::null::forget_time(); }
FORESHARD_NULL_API void foreshard_null_flush() { foreshard::null::flush_log(); }
