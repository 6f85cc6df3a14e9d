// Published threads in which somebody's training was slow, or too large, and the cause was found (threads.yaml): how
// much likelier other words make each cause, and which thread of it they are most like.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "sim/base/config.h"

namespace foreshard {

struct PublishedThread {
  std::string source, said;
  ConfigNode cause;  // a text
};
std::vector<PublishedThread> read_threads(const ConfigNode& file);  // threads.yaml, or one of its form

struct LikeThreads {
  std::map<std::string, double> count;  // of threads, by cause
  std::map<std::string, double> times;  // by cause; none where no thread has it
  // By cause, of the thread that shares most with the words; none where none does.
  std::map<std::string, std::string> source;
};

// Naive Bayes of words and of pairs of neighbours, tempered, since the words of a post go together. `without`: source
// of a thread that has no say, as it is scored.
LikeThreads like_threads(const std::string& words, const std::string& without = "");

}
