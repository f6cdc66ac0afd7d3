// TestService: a peer whose behaviour the request's first letter picks, and the caller's side
// of it. Used by every adapter's tests.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/runtime.h"
#include "transfer/transport.h"

namespace mooncake::transfer {

// The byte at `offset` of what a get returns and a put expects.
constexpr std::byte PatternAt(uint64_t offset) {
  return static_cast<std::byte>(offset * 131 + (offset >> 8) * 7 + (offset >> 16));
}
std::vector<std::byte> PatternBytes(uint64_t size);

// Requests:
//   e       echo: replies the message and the payload
//   b       the same, through Prepare(true) and Run(true)
//   g SIZE [PIECES]  replies SIZE bytes of the pattern in PIECES pieces
//   p       takes the payload into one buffer, replies "ok" or "bad" (pattern)
//   d       drops every second 1,000 bytes of the payload, replies how many were kept
//   w       waits in Run(true) until Release
//   t       replies the time left until the deadline, in ms
//   x       is not accepted
//   s       claims targets of another size than the payload
class TestService final : public Service {
 public:
  explicit TestService(Runtime& runtime);
  ~TestService() override;
  std::unique_ptr<ServerCall> Accept(const IncomingRequest& request) override;

  void Release() { release_->Set(); }
  int live_calls() const { return live_calls_.load(); }
  int accepted() const { return accepted_.load(); }
  int served() const { return served_.load(); }  // Run returned true.

 private:
  friend class TestCall;
  Runtime& runtime_;
  std::unique_ptr<Event> release_;
  std::atomic<int> live_calls_ = 0;
  std::atomic<int> accepted_ = 0;
  std::atomic<int> served_ = 0;
};

// Takes any reply into one buffer, or into pieces that `split` makes of it.
class TestObserver final : public CallObserver {
 public:
  void OnSend(size_t piece, ConstBytes chunk) override;
  void OnRestart() override;
  uint64_t EndSize() const override { return end_size; }
  Status OnEnd() override { return on_end ? on_end() : Ok(); }
  Result<std::span<const MutableBytes>> OnReply(std::string_view reply, uint64_t size) override;
  void OnReceive(size_t piece, ConstBytes chunk) override;

  // Set before the call.
  std::function<std::vector<MutableBytes>(MutableBytes buffer)> split;
  std::function<void(size_t piece, ConstBytes chunk)> on_send;
  std::function<void()> on_receive;
  uint64_t end_size = 0;
  std::function<Status()> on_end;
  Status refuse;  // What OnReply returns, unless ok.

  // Read after it.
  std::string message;
  std::vector<std::byte> payload;
  uint64_t sent_bytes = 0;
  uint64_t received_bytes = 0;
  size_t chunk_max = 0;
  int restarts = 0;
  int replies = 0;
  bool in_order = true;  // Chunks came in the order of the payload.

 private:
  std::vector<MutableBytes> pieces_;
  std::vector<uint64_t> piece_done_;
  size_t piece_ = 0;
};

// A call and what it needs, in one object.
struct TestCallSpec {
  TestCallSpec(std::string endpoint_in, std::string message_in, uint64_t payload_size = 0);
  Call Make();

  std::string endpoint;
  std::string message;
  std::vector<std::byte> bytes;  // The pattern.
  std::vector<ConstBytes> pieces;
  uint64_t deadline_ms = 0;
  TestObserver observer;
};

// Runs one call and returns it.
Call CallOne(Transport& transport, TestCallSpec& spec);

}  // namespace mooncake::transfer
