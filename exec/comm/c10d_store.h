// What a JobStore holds, for the files that hand it to c10d. Includes Torch: for .cpp files only.
#pragma once

#include <string>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include "exec/comm/job_store.h"

namespace foreshard {

struct JobStore::Connection {
  c10::intrusive_ptr<c10d::Store> store;  // of this job: keys carry its prefix
  c10::intrusive_ptr<c10d::Store> whole;
};

// The first line of what an exception of LibTorch says, without its stack trace.
std::string first_line(const std::exception& error);

}
