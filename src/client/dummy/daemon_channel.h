// The gRPC side of a link: the channel to the daemon, and calls on it that can be interrupted.
// Included by link.cc alone, as it brings gRPC with it.
#pragma once

#include <grpcpp/grpcpp.h>

#include <functional>
#include <memory>
#include <string>

#include "mooncake/result.h"
#include "mooncake/v1/store_daemon.grpc.pb.h"
#include "runtime/runtime.h"

namespace mooncake::client {

class DaemonChannel {
 public:
  using Stub = ::mooncake::daemon::v1::StoreDaemon::Stub;

  explicit DaemonChannel(const std::string& address);

  // Waits for the reply and looks now and then whether the caller wants to be interrupted.
  // `wait`: for a connection that is being made.
  template <typename Request, typename Reply, typename Method>
  grpc::Status Call(Method method, const Request& request, Reply* reply, uint64_t limit_ms,
                    const std::function<bool()>& stop, bool wait = false) {
    grpc::ClientContext context;
    // Nobody else drives a connection that is being made: a call that does not wait for it
    // leaves it unfinished.
    context.set_wait_for_ready(wait);
    context.set_deadline(Deadline(limit_ms));
    grpc::CompletionQueue queue;
    grpc::Status status;
    auto call = (stub_.get()->*method)(&context, request, &queue);
    call->Finish(reply, &status, this);
    void* tag = nullptr;
    bool ok = false;
    while (queue.AsyncNext(&tag, &ok, Deadline(kLookMs)) == grpc::CompletionQueue::TIMEOUT) {
      if (stop()) context.TryCancel();
    }
    return status;
  }

  // Whether the daemon still answers, for a call that waits for it by other means: asks its
  // health over and over, without blocking. A daemon that stands still is found within 9.5 s.
  class Pulse {
   public:
    Pulse(DaemonChannel& channel, Runtime& runtime, ::mooncake::daemon::v1::Session session);
    ~Pulse();
    Pulse(const Pulse&) = delete;
    Pulse& operator=(const Pulse&) = delete;
    bool Gone();  // To be asked often.

   private:
    struct Question;
    void Ask();

    DaemonChannel& channel_;
    Runtime& runtime_;
    const ::mooncake::daemon::v1::Session session_;
    uint64_t next_ms_ = 0;
    std::unique_ptr<Question> question_;  // While it is not answered.
  };

  // FAILED_PRECONDITION is the daemon's word for a session that it does not know: kStaleEpoch.
  static Error ErrorOf(const grpc::Status& status, const std::string& address);

 private:
  static constexpr uint64_t kLookMs = 100;
  static gpr_timespec Deadline(uint64_t ms);

  std::shared_ptr<grpc::Channel> channel_;
  std::unique_ptr<Stub> stub_;
};

}  // namespace mooncake::client
