// Folders of recordings, as conform takes them: any files give configurations and what was recorded
// of them, or an Error for bad input. An input is the files one after another, each behind a line
// "== name".
#include <cstddef>
#include <cstdint>
#include <filesystem>

#include "interop/recordings/library_recordings.h"
#include "interop/recordings/recordings.h"
#include "tests/fuzz/scratch.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace foreshard;
  const std::filesystem::path folder = scratch() / "recording";
  std::filesystem::remove_all(folder);
  std::filesystem::create_directories(folder);
  for (const auto& [name, text] : split_files({reinterpret_cast<const char*>(data), size})) {
    in_scratch("recording/" + name, text);
  }
  expect_answer_or_refusal([&] {
    for (const std::filesystem::path& path : find_recordings(folder)) {
      RecordingLibrary library;
      const RecordingFolder& found = library.open(path);
      const bool is_library = has_library_recordings(found);
      for (std::size_t row = 0; row < found.size() && row < 4; ++row) {
        if (found.refusal(row)) continue;
        expect_answer_or_refusal([&] { library.read(found, row); });
        if (is_library) expect_answer_or_refusal([&] { read_library_recording(found, row); });
      }
    }
  });
  return 0;
}
