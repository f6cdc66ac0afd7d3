#include "runtime/real_runtime.h"
#include "runtime/sim_runtime.h"
#include "transfer/memory/memory_network.h"
#include "unit/transfer/contract.h"

namespace mooncake::transfer {
namespace {

// Passes all on to another runtime, but for the interrupts.
class InterruptibleRuntime final : public Runtime {
 public:
  explicit InterruptibleRuntime(Runtime& base) : base_(base) {}
  uint64_t NowMs() override { return base_.NowMs(); }
  uint64_t NowNs() override { return base_.NowNs(); }
  uint64_t WallMs() override { return base_.WallMs(); }
  void SleepMs(uint64_t ms) override { base_.SleepMs(ms); }
  void Yield() override { base_.Yield(); }
  uint64_t Random() override { return base_.Random(); }
  std::unique_ptr<Event> NewEvent() override { return base_.NewEvent(); }
  std::unique_ptr<Thread> Spawn(std::string name, std::function<void()> body) override {
    return base_.Spawn(std::move(name), std::move(body));
  }
  bool Interrupted() override { return interrupted.load(); }

  std::atomic<bool> interrupted = false;

 private:
  Runtime& base_;
};

class MemoryWorld : public TransportWorld {
 public:
  explicit MemoryWorld(Runtime& base) : runtime_(base) {}
  Runtime& runtime() override { return runtime_; }
  void Run(const std::function<void()>& body) override {
    network_ = std::make_unique<MemoryNetwork>(runtime_, kStallMs);
    body();
    silent_.clear();
    network_.reset();
  }
  std::unique_ptr<Transport> NewTransport() override {
    return std::make_unique<MemoryTransport>(*network_);
  }
  std::string SilentEndpoint() override {
    silent_.push_back(NewTransport());
    const std::string endpoint = silent_.back()->Listen("silent", 0, nullptr).value();
    network_->SetPaused(endpoint, true);
    return endpoint;
  }
  std::string RefusedEndpoint() override { return "nowhere:1"; }
  void Kill(Transport&, const std::string& endpoint) override { network_->SetDown(endpoint, true); }
  void SetInterrupted(bool interrupted) override { runtime_.interrupted = interrupted; }

 private:
  InterruptibleRuntime runtime_;
  std::unique_ptr<MemoryNetwork> network_;
  std::vector<std::unique_ptr<Transport>> silent_;
};

class RealWorld final : public MemoryWorld {
 public:
  RealWorld() : MemoryWorld(real_) {}

 private:
  runtime::RealRuntime real_;
};

class SimWorld final : public MemoryWorld {
 public:
  SimWorld() : MemoryWorld(sim_), sim_(42) {}
  void Run(const std::function<void()>& body) override {
    sim_.Run([&] { MemoryWorld::Run(body); });
  }

 private:
  runtime::SimRuntime sim_;
};

std::unique_ptr<TransportWorld> MakeReal() { return std::make_unique<RealWorld>(); }
std::unique_ptr<TransportWorld> MakeSim() { return std::make_unique<SimWorld>(); }

INSTANTIATE_TEST_SUITE_P(Memory, TransportContract, testing::Values(WorldMaker(MakeReal)));
INSTANTIATE_TEST_SUITE_P(MemorySim, TransportContract, testing::Values(WorldMaker(MakeSim)));

}  // namespace
}  // namespace mooncake::transfer
