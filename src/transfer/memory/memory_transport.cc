#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <utility>

#include "transfer/memory/memory_call.h"
#include "transfer/memory/memory_network.h"
#include "transfer/memory/network_state.h"

namespace mooncake::transfer {
namespace {

// How often a waiting call looks for Close and interrupts.
constexpr uint64_t kSliceMs = 200;

}  // namespace

MemoryNetwork::MemoryNetwork(Runtime& runtime, uint64_t stall_ms)
    : state_(std::make_unique<NetworkState>(runtime, stall_ms)) {}
MemoryNetwork::~MemoryNetwork() = default;

void MemoryNetwork::SetFaults(const NetworkFaults& faults) { state_->SetFaults(faults); }
void MemoryNetwork::Partition(std::vector<std::set<std::string>> groups) {
  state_->SetGroups(std::move(groups));
}
void MemoryNetwork::Block(const std::string& from, const std::string& to, bool blocked) {
  state_->SetBlocked(from, to, blocked);
}
void MemoryNetwork::SetDown(const std::string& endpoint, bool down) {
  state_->SetDown(endpoint, down);
}
void MemoryNetwork::SetPaused(const std::string& endpoint, bool paused) {
  state_->SetPaused(endpoint, paused);
}
void MemoryNetwork::Heal() { state_->Heal(); }

struct MemoryTransport::Self {
  std::string endpoint;  // Empty: does not listen. Set by Listen only.
  std::atomic<bool> closed = false;
  base::Mutex mu;
  std::set<std::string> tokens MC_GUARDED_BY(mu);
};

MemoryTransport::MemoryTransport(MemoryNetwork& network)
    : network_(network.state()), self_(std::make_unique<Self>()) {}

MemoryTransport::~MemoryTransport() { Close(); }

Result<std::string> MemoryTransport::Listen(const std::string& host, uint16_t port,
                                            Service* service) {
  if (self_->closed.load(std::memory_order_relaxed)) return InvalidState("closed");
  if (!self_->endpoint.empty()) return InvalidState("this transport listens already");
  MC_TRY(self_->endpoint, network_.AddNode(host, port, service));
  return self_->endpoint;
}

void MemoryTransport::CallMany(std::span<Call> calls) {
  Runtime& runtime = network_.runtime;
  std::shared_ptr<Event> event = runtime.NewEvent();
  std::vector<MemoryCall> states;
  states.reserve(calls.size());
  uint64_t now_ms = runtime.NowMs();
  for (Call& call : calls) {
    states.emplace_back(network_, self_->endpoint, self_->closed, event, call);
    states.back().Start(now_ms);
  }
  for (;;) {
    uint64_t due_ms = now_ms + kSliceMs;
    bool done = true;
    for (const MemoryCall& state : states) {
      if (state.done()) continue;
      done = false;
      due_ms = std::min(due_ms, state.DueMs());
    }
    if (done) return;
    if (due_ms <= now_ms) {
      runtime.Yield();  // Nothing to wait for, but others may come in between.
    } else {
      event->WaitUntil(due_ms);
    }
    event->Clear();
    now_ms = runtime.NowMs();
    const bool interrupted = runtime.Interrupted();
    for (MemoryCall& state : states) {
      if (!state.done() && interrupted) state.Interrupt();
      if (!state.done()) state.Advance(now_ms);
    }
  }
}

Result<std::string> MemoryTransport::RegisterMemory(MutableBytes range) {
  std::string token = network_.AddRegion(range);
  base::MutexLock lock(self_->mu);
  self_->tokens.insert(token);
  return token;
}

void MemoryTransport::UnregisterMemory(MutableBytes range) {
  std::set<std::string> tokens;
  {
    base::MutexLock lock(self_->mu);
    tokens = self_->tokens;
  }
  network_.RemoveRegion(range, tokens);
}

void MemoryTransport::AccessMany(std::span<RemoteAccess> accesses) {
  std::vector<RemoteAccess*> silent;  // They cost one stall limit together.
  for (RemoteAccess& access : accesses) {
    if (self_->closed.load(std::memory_order_relaxed)) {
      access.status = InvalidState("the transport is closed");
    } else if (network_.IsSilent(self_->endpoint, access)) {
      silent.push_back(&access);
    } else {
      access.status = network_.Access(self_->endpoint, access);
    }
  }
  if (silent.empty()) return;
  const uint64_t until_ms = network_.runtime.NowMs() + network_.stall_ms;
  while (network_.runtime.NowMs() < until_ms && !network_.runtime.Interrupted() &&
         !self_->closed.load(std::memory_order_relaxed)) {
    network_.runtime.SleepMs(std::min(kSliceMs, network_.stall_ms));
  }
  for (RemoteAccess* access : silent) {
    access->status = TransportError(fmt::format("peer `{}` is silent", access->endpoint));
  }
}

void MemoryTransport::Close() {
  if (self_->closed.exchange(true, std::memory_order_relaxed)) return;
  std::set<std::string> tokens;
  {
    base::MutexLock lock(self_->mu);
    std::swap(tokens, self_->tokens);
  }
  network_.RemoveRegions(tokens);
  if (!self_->endpoint.empty()) network_.RemoveNode(self_->endpoint);
}

}  // namespace mooncake::transfer
