// Calls that the null GPU does not know.
#pragma once

#include <cstddef>
#include <cstdint>

namespace foreshard::null {

// A function that, when it is called, names itself and ends the process with exit status 6.
// nullptr where there is no code for this processor.
void* refusing_function(const char* name);

// Every call of the loaded libraries into CUDA's libraries that are not answered here leads to a
// refusing function from now on. Does nothing where no library was loaded since the last time.
void patch_unanswered();

// Whether a loaded library is linked to that one, or to one whose name begins with so many letters
// of it; its file may be another, or none.
bool is_needed(const char* library, std::size_t letters = SIZE_MAX);

// The driver's function of that name, with or without "_v2"; a refusing one where it is unknown.
void* driver_function(const char* name);

}
