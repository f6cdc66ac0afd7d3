// MemoryCall: one call of MemoryTransport::CallMany as a list of events in time, so that one
// thread runs the calls of a batch side by side.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>

#include "transfer/memory/network_state.h"
#include "transfer/transport.h"

namespace mooncake::transfer {

class MemoryCall {
 public:
  // All outlive this object. `event` is set by threads that serve.
  MemoryCall(NetworkState& network, const std::string& self, const std::atomic<bool>& closed,
             std::shared_ptr<Event> event, Call& call);
  ~MemoryCall();
  MemoryCall(MemoryCall&&) = default;

  void Start(uint64_t now_ms);
  // Does what is due.
  void Advance(uint64_t now_ms);
  bool done() const { return phase_ == Phase::kDone; }
  // When Advance has something to do at the latest, unless the event is set before.
  uint64_t DueMs() const;
  void Interrupt();

 private:
  enum class Phase : uint8_t {
    kRequest,  // Under way to the peer,
    kServing,  // with it,
    kReply,    // under way back.
    kLost,     // Nothing will come.
    kDone,
  };

  void Send();
  uint64_t DrawWrongByte(uint64_t size);
  void Arrive(uint64_t now_ms);
  void Served(uint64_t now_ms);
  void TakeReply();
  bool CopyReply(std::span<const MutableBytes> targets);
  void MaybeDuplicate();
  void Move(Phase phase, uint64_t now_ms);
  void Finish(Status status, CallFailure failure);
  void Broken();

  NetworkState& network_;
  const std::string& self_;
  const std::atomic<bool>& closed_;
  std::shared_ptr<Event> event_;
  Call& call_;
  NetworkFaults faults_;
  Phase phase_ = Phase::kDone;
  std::shared_ptr<Delivery> delivery_;
  uint64_t moved_ms_ = 0;  // When a byte last moved.
  uint64_t due_ms_ = 0;    // Of kRequest and kReply.
};

}  // namespace mooncake::transfer
