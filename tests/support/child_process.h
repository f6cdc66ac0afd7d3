// A program of a test's own, killed with the test's process.
#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

namespace mooncake::testing {

class ChildProcess {
 public:
  ChildProcess() = default;
  ~ChildProcess();
  ChildProcess(const ChildProcess&) = delete;
  ChildProcess& operator=(const ChildProcess&) = delete;

  // Its output goes nowhere. REQUIRES: it does not run.
  void Start(std::vector<std::string> words);
  bool Running();
  void Kill();   // Idempotent.
  void Pause();  // Silent, with its connections open.
  void Resume();

 private:
  pid_t pid_ = -1;
};

// A port of the loopback that nobody has now.
uint16_t FreePort();

}  // namespace mooncake::testing
