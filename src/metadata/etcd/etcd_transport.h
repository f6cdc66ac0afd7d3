// Requests to the members of an etcd cluster: connections that are kept, a login that is renewed,
// and the next member when one is gone.
//
// Thread-safe. Threads do not wait for each other: a caller that finds no idle connection opens
// one, and a few are kept afterwards.
#pragma once

#include <atomic>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/mutex.h"
#include "metadata/etcd/etcd_url.h"
#include "metadata/net/grpc_connection.h"

namespace mooncake::metadata {

struct EtcdTimeouts {
  uint64_t connect_ms = 3'000;
  uint64_t io_ms = 3'000;  // For one exchange.
};

// Why a request failed.
struct EtcdFault {
  int code = 0;            // gRPC's, of what the server refused; 0: it did not answer.
  bool uncertain = false;  // It may have taken effect.
};

struct EtcdRequest {
  std::string_view method;  // As of GrpcCall.
  std::string_view message;
  bool repeatable = true;  // False: never sent twice.
};

class EtcdTransport {
 public:
  EtcdTransport(EtcdAddress address, EtcdTimeouts timeouts, Runtime& runtime);

  // The message of a good reply. kMetadata: no server, no answer, or what it refused, named, never
  // the credentials. kTransport: the process was interrupted.
  Result<std::string> Call(const EtcdRequest& request, uint64_t deadline_ms, EtcdFault& fault);

  const EtcdTimeouts& timeouts() const { return timeouts_; }
  // As MetadataStore::Denies; of the user and the password only.
  bool denied() const { return denied_.load(std::memory_order_relaxed); }
  // As MetadataStore::EndBy.
  void EndBy(uint64_t deadline_ms) { end_by_ms_.store(deadline_ms, std::memory_order_relaxed); }

 private:
  enum class Next { kStop, kAgain, kOtherMember };
  struct Connection {
    size_t member = 0;
    std::unique_ptr<GrpcConnection> grpc;
  };

  Result<std::string> Try(const EtcdRequest& request, uint64_t deadline_ms, EtcdFault& fault,
                          Next& next);
  void Leave(size_t member);  // The next call asks the one after it.
  // What comes after an exchange that brought no answer.
  Next AfterFailure(const Connection& connection, ErrorCode code);
  Result<Connection> Take(size_t member, uint64_t deadline_ms, Next& next);
  void GiveBack(Connection connection);
  Result<std::string> Token(Connection& connection, uint64_t deadline_ms, Next& next);
  void ForgetToken(const std::string& token);
  Result<std::string> Login(Connection& connection, uint64_t deadline_ms, Next& next);
  // What a connection says that failed, or why a server refused.
  Error Failed(const Connection& connection, const Error& error) const;
  Error Refused(size_t member, std::string_view why) const;
  uint64_t Exchange(uint64_t deadline_ms, uint64_t limit_ms) const;

  const EtcdAddress address_;
  const EtcdTimeouts timeouts_;
  Runtime& runtime_;
  std::atomic<size_t> member_{0};  // The one in use; a hint, any value does.
  std::atomic<uint64_t> end_by_ms_{UINT64_MAX};
  std::atomic<bool> denied_{false};
  base::Mutex mu_;
  std::vector<Connection> idle_ MC_GUARDED_BY(mu_);
  std::string token_ MC_GUARDED_BY(mu_);  // Empty: to be asked for.
};

}  // namespace mooncake::metadata
