// The addresses of a host, asked of the system's resolver, which knows no deadline: it is asked
// by a thread of its own, and who waits may give up. Used by one thread.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "mooncake/result.h"
#include "runtime/runtime.h"

struct addrinfo;  // NOLINT(readability-identifier-naming): the system's name.

namespace mooncake::metadata {

class Lookup {
 public:
  // An address in numbers is known at once, without a thread. kMetadata: too many threads of this
  // process still ask for names that others gave up.
  static Result<std::unique_ptr<Lookup>> Start(const std::string& host, uint16_t port,
                                               Runtime& runtime);
  class Question;                                       // What the thread works on.
  explicit Lookup(std::shared_ptr<Question> question);  // For Start.
  // What was not found in time is left to its thread.
  ~Lookup();
  Lookup(const Lookup&) = delete;
  Lookup& operator=(const Lookup&) = delete;

  // True: it has ended.
  bool WaitUntil(uint64_t deadline_ms);
  // Of one that has ended; what it found lives as long as the lookup. kMetadata: why it found
  // nothing.
  Result<const addrinfo*> Found() const;

 private:
  // With the thread, which may outlive the lookup and so needs all it uses kept alive.
  const std::shared_ptr<Question> question_;
  std::unique_ptr<Thread> thread_;  // None for an address in numbers.
};

}  // namespace mooncake::metadata
