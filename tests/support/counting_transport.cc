#include "support/counting_transport.h"

#include <algorithm>
#include <atomic>
#include <vector>

namespace mooncake::testing {

namespace {

class CountingObserver final : public CallObserver {
 public:
  CountingObserver(CallObserver& inner, std::atomic<uint64_t>& bytes)
      : inner_(inner), bytes_(bytes) {}
  void OnSend(size_t piece, ConstBytes chunk) override { inner_.OnSend(piece, chunk); }
  void OnRestart() override { inner_.OnRestart(); }
  uint64_t EndSize() const override { return inner_.EndSize(); }
  Status OnEnd() override { return inner_.OnEnd(); }
  Result<std::span<const MutableBytes>> OnReply(std::string_view message,
                                                uint64_t payload_size) override {
    bytes_ += payload_size;
    return inner_.OnReply(message, payload_size);
  }
  void OnReceive(size_t piece, ConstBytes chunk) override { inner_.OnReceive(piece, chunk); }

 private:
  CallObserver& inner_;
  std::atomic<uint64_t>& bytes_;
};

}  // namespace

TransportCounts CountingTransport::counts() const {
  base::MutexLock lock(mu_);
  return counts_;
}

TransportCounts CountingTransport::Take() {
  base::MutexLock lock(mu_);
  return std::exchange(counts_, {});
}

void CountingTransport::BeforeNext(uint16_t type, std::function<void()> act) {
  base::MutexLock lock(mu_);
  act_before_ = type;
  act_ = std::move(act);
}

void CountingTransport::ActFirst(std::span<const Call> calls) {
  std::function<void()> act;
  {
    base::MutexLock lock(mu_);
    const bool due = std::any_of(calls.begin(), calls.end(),
                                 [&](const Call& call) { return call.type == act_before_; });
    if (due) act.swap(act_);
  }
  if (act) act();
}

void CountingTransport::CallMany(std::span<Call> calls) {
  ActFirst(calls);
  std::atomic<uint64_t> reply_bytes = 0;
  std::vector<std::unique_ptr<CountingObserver>> observers;
  std::vector<CallObserver*> originals;
  TransportCounts seen;
  for (Call& call : calls) {
    originals.push_back(call.observer);
    if (ignored_.contains(call.type)) continue;
    observers.push_back(std::make_unique<CountingObserver>(*call.observer, reply_bytes));
    call.observer = observers.back().get();
    ++seen.messages;
    ++seen.messages_to[std::string(call.endpoint)];
    ++seen.messages_of[call.type];
    seen.request_bytes += TotalSize(call.payload);
  }
  inner_.CallMany(calls);
  for (size_t i = 0; i < calls.size(); ++i) calls[i].observer = originals[i];
  if (seen.messages == 0) return;
  base::MutexLock lock(mu_);
  ++counts_.rounds;
  counts_.messages += seen.messages;
  counts_.request_bytes += seen.request_bytes;
  counts_.reply_bytes += reply_bytes;
  for (const auto& [endpoint, count] : seen.messages_to) counts_.messages_to[endpoint] += count;
  for (const auto& [type, count] : seen.messages_of) counts_.messages_of[type] += count;
}

}  // namespace mooncake::testing
