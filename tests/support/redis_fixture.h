// A redis-server of a test's own: started on a free loopback port, stopped, paused and emptied as
// the test asks, and killed with the test's process.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "runtime/runtime.h"
#include "support/child_process.h"

namespace mooncake::testing {

class RedisFixture {
 public:
  // Starts the server and waits until it answers. `runtime` is a real one.
  explicit RedisFixture(Runtime& runtime, std::string password = "",
                        std::vector<std::string> more_arguments = {});

  bool Start();                     // Empty, on the same port as before. False: it did not come up.
  void Stop() { process_.Kill(); }  // At once, and with its data.
  void Pause() { process_.Pause(); }
  void Resume() { process_.Resume(); }

  // Sends one command on a connection of its own. Lists are joined by newlines; an error starts
  // with '-'; empty when the server does not answer.
  std::string Command(const std::vector<std::string>& arguments, int db = 0);
  // A number out of INFO, 0 when absent.
  uint64_t Info(const std::string& section, const std::string& field);
  void Flush() { Command({"FLUSHALL"}); }
  // Cuts every connection of clients.
  void CutConnections() { Command({"CLIENT", "KILL", "TYPE", "normal"}); }

  uint16_t port() const { return port_; }
  const std::string& password() const { return password_; }
  // With percent-encoded credentials.
  std::string Url(int db = 0) const;

 private:
  Runtime& runtime_;
  const std::string password_;
  const std::vector<std::string> more_arguments_;
  uint16_t port_ = 0;
  ChildProcess process_;
};

// "a b" -> "a%20b": every byte but letters and digits.
std::string PercentEncode(const std::string& text);

}  // namespace mooncake::testing
