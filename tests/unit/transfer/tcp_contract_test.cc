#include <sys/socket.h>

#include "runtime/real_runtime.h"
#include "transfer/tcp/socket.h"
#include "transfer/tcp/tcp_transport.h"
#include "unit/transfer/contract.h"

namespace mooncake::transfer {
namespace {

class TcpWorld final : public TransportWorld {
 public:
  explicit TcpWorld(std::string secret) : secret_(std::move(secret)) {
    runtime_.SetInterruptCheck([this] { return interrupted_.load(); });
  }
  Runtime& runtime() override { return runtime_; }
  void Run(const std::function<void()>& body) override { body(); }
  std::unique_ptr<Transport> NewTransport() override {
    return std::make_unique<TcpTransport>(
        runtime_, TcpOptions{.stall_ms = kStallMs, .secret = secret_, .slice_ms = 50});
  }
  std::string SilentEndpoint() override {
    uint16_t port = 0;
    silent_.push_back(ListenOn("127.0.0.1", port, 0).value());  // Never accepts.
    return "127.0.0.1:" + std::to_string(port);
  }
  std::string RefusedEndpoint() override {
    uint16_t port = 0;
    auto listener = ListenOn("127.0.0.1", port, 0);  // Closed on return.
    return "127.0.0.1:" + std::to_string(port);
  }
  void Kill(Transport& peer, const std::string&) override { peer.Close(); }
  void SetInterrupted(bool interrupted) override { interrupted_ = interrupted; }

 private:
  const std::string secret_;
  runtime::RealRuntime runtime_;
  std::atomic<bool> interrupted_ = false;
  std::vector<UniqueFd> silent_;
};

std::unique_ptr<TransportWorld> MakeOpen() { return std::make_unique<TcpWorld>(""); }
std::unique_ptr<TransportWorld> MakeSecret() { return std::make_unique<TcpWorld>("s3cret"); }

INSTANTIATE_TEST_SUITE_P(Tcp, TransportContract, testing::Values(WorldMaker(MakeOpen)));
INSTANTIATE_TEST_SUITE_P(TcpSecret, TransportContract, testing::Values(WorldMaker(MakeSecret)));

}  // namespace
}  // namespace mooncake::transfer
