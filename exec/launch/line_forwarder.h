// Copies what arrives on a pipe to standard error, whole lines with a prefix.
#pragma once

#include <string>

namespace foreshard {

class LineForwarder {
 public:
  // Owns `pipe`, which does not block.
  LineForwarder(int pipe, std::string prefix);
  ~LineForwarder();  // writes the rest, a line without its end too
  LineForwarder(LineForwarder&& other) noexcept;
  LineForwarder& operator=(LineForwarder&&) = delete;

  int pipe() const { return pipe_; }  // -1: at its end
  void forward();                     // what is there now

 private:
  int pipe_;
  std::string prefix_;
  std::string rest_;
};

}  // namespace foreshard
