// The contract suite of the Transport port. An adapter's test makes a TransportWorld and
// instantiates the suite with it:
//
//   INSTANTIATE_TEST_SUITE_P(Tcp, TransportContract, testing::Values(WorldMaker(MakeTcpWorld)));
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "runtime/runtime.h"
#include "transfer/transport.h"

namespace mooncake::transfer {

// What the suite needs of an adapter and its surroundings.
class TransportWorld {
 public:
  virtual ~TransportWorld() = default;
  virtual Runtime& runtime() = 0;
  // Runs the body of a test.
  virtual void Run(const std::function<void()>& body) = 0;
  // Of one network, with a stall limit of kStallMs.
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
  static constexpr uint64_t kStallMs = 4'000;  // Everything is slower but the clock.
#else
  static constexpr uint64_t kStallMs = 500;
#endif
  virtual std::unique_ptr<Transport> NewTransport() = 0;
  // A peer that takes a connection and never says a word.
  virtual std::string SilentEndpoint() = 0;
  // Nobody listens there.
  virtual std::string RefusedEndpoint() = 0;
  // The peer's process ends, seen from its callers.
  virtual void Kill(Transport& peer, const std::string& endpoint) = 0;
  // What Runtime::Interrupted answers.
  virtual void SetInterrupted(bool interrupted) = 0;
};

using WorldMaker = std::function<std::unique_ptr<TransportWorld>()>;

class TransportContract : public testing::TestWithParam<WorldMaker> {};

// Descriptors that this process has open.
size_t OpenDescriptors();

}  // namespace mooncake::transfer
