#include "transfer/tcp/tcp_transport.h"

#include <fmt/format.h>

#include "transfer/tcp/client_call.h"
#include "transfer/tcp/server.h"

namespace mooncake::transfer {

TcpTransport::TcpTransport(Runtime& runtime, TcpOptions options, Metrics* metrics)
    : runtime_(runtime),
      options_(std::move(options)),
      metrics_(metrics),
      client_(std::make_unique<ClientContext>(runtime_, options_, metrics)) {}

TcpTransport::~TcpTransport() { Close(); }

Result<std::string> TcpTransport::Listen(const std::string& host, uint16_t port, Service* service) {
  if (client_->closed.load(std::memory_order_relaxed)) return InvalidState("closed");
  if (server_) return InvalidState("this transport listens already");
  auto server = std::make_unique<TcpServer>(runtime_, options_, metrics_, service);
  MC_TRY(std::string endpoint,
         server->Start(host, port, [this](uint64_t now_ms) { client_->pool.Sweep(now_ms); }));
  server_ = std::move(server);
  return endpoint;
}

void TcpTransport::CallMany(std::span<Call> calls) { RunCalls(*client_, calls); }

void TcpTransport::AccessMany(std::span<RemoteAccess> accesses) {
  for (RemoteAccess& access : accesses) {
    access.status = Unsupported("tcp has no one-sided access");
  }
}

void TcpTransport::Forget(std::string_view endpoint) { client_->pool.Forget(endpoint); }

void TcpTransport::Close() {
  client_->closed.store(true, std::memory_order_relaxed);
  if (server_) server_->Close();
  client_->pool.Clear();
}

}  // namespace mooncake::transfer
