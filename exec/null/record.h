// What a call leaves in the log, for the interfaces that make the same kinds of calls.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "exec/null/abi.h"
#include "exec/null/races.h"

namespace foreshard::null {

// How many words of a kernel's argument may be addresses, and what it does with what they point at.
struct ArgumentWords {
  enum class How : std::uint8_t { kUnknown, kReads, kWrites, kWritesFirst };
  std::uint16_t words = 1;
  How how = How::kUnknown;
  // Of at::native's lists of tensors: `lists` of them, each with places for `words` addresses, and
  // from byte `owners_at` on the list's position that each block works on.
  std::uint16_t lists = 0;
  std::uint16_t owners_at = 0;
  bool is_sure = true;  // that the words are the argument's own
  enum class Form : std::uint8_t {
    kWords,
    kTable,    // the word points at addresses in device memory
    kStrided,  // at::native's kernels over strided tensors
    kReduced,  // at::native's reductions
    kRows,     // one address for each row of the grid, at::native's cat
  };
  Form form = Form::kWords;
  std::uint16_t skipped = 0;  // words before the first that may be an address
};

struct Launch {
  std::int64_t name = 0;  // name_id
  Dim3 grid{1, 1, 1}, block{1, 1, 1};
  std::uint64_t shared_bytes = 0;
  StreamHandle stream = nullptr;
  void** arguments = nullptr;                         // addresses of the kernel's arguments, or nullptr
  const std::vector<ArgumentWords>* words = nullptr;  // nullptr: one of each, as many as there are
  std::int64_t elements = -1;                         // -1: not known
};
void record_launch(const Launch& launch);
// Of a kernel's mangled name.
std::vector<std::string> argument_types(const std::string& mangled);
// A pointer is one word, a number none, a structure as many as it has (std::array<char*, 3>,
// TensorIterator's: its output comes first) or may have.
std::vector<ArgumentWords> argument_words(const std::vector<std::string>& types);

struct Product {
  std::int64_t name = 0;
  StreamHandle stream = nullptr;
  std::int64_t m = 0, n = 0, k = 0, batch = 1;
  int a_type = 0, c_type = 0;  // cudaDataType_t
  bool a_transposed = false, b_transposed = false;
  const void *output = nullptr, *a = nullptr, *b = nullptr;
};
void record_product(const Product& product);

// Attention and norms of cuDNN: a name and its shape, in the order that docs/capture.md gives.
struct LibraryCall {
  std::string name;  // "cudnn attention_forward"
  StreamHandle stream = nullptr;
  std::uint64_t bytes = 0;  // read and written
  std::vector<std::int64_t> shape;
  std::vector<Use> uses = {};
};
void record_library_call(const LibraryCall& call);

struct Copy {
  char kind = 'D';  // 'h' host to device, 'd' device to host, 'D' device to device, 's' set
  StreamHandle stream = nullptr;
  std::uint64_t bytes = 0;
  void* to = nullptr;
  const void* from = nullptr;
};
void record_copy(const Copy& copy);
void record_copy_and_wait(const Copy& copy);
// The host read device memory that nobody knows; where it is in the program's source.
void record_blind_read(std::uint64_t bytes);
// Numbers that nobody knows were counted, as level.
void record_level_counts();
void record_wait(char what, const void* of);  // 's' stream, 'e' event, 'd' device

// Under --check: a line U where this thread's Python is no longer where its last one said; name_id of the place.
std::int64_t note_place();

// The innermost frames of this thread's Python code, "file:line function < file:line function";
// "" where no interpreter runs.
std::string python_place();

// Enumerations' bytes: cudaDataType_t.
int bytes_of_type(int cuda_data_type);

}
