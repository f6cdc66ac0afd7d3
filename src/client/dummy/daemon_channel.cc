#include "client/dummy/daemon_channel.h"

#include <fmt/format.h>

namespace mooncake::client {

namespace {

constexpr int kConnectMs = 2'000;  // Of one attempt.
constexpr int kBackoffMs = 100;
// A daemon that is silent this long is given up: 9 s altogether.
constexpr int kKeepAliveMs = 5'000;
constexpr int kKeepAliveTimeoutMs = 4'000;
constexpr int kMessageMax = 256 << 20;
constexpr uint64_t kPulseAfterMs = 500;    // A call waits that long before it asks.
constexpr uint64_t kPulseLimitMs = 9'000;  // A daemon that has not answered by then is gone.

grpc::ChannelArguments ChannelOptions() {
  grpc::ChannelArguments options;
  options.SetInt(GRPC_ARG_KEEPALIVE_TIME_MS, kKeepAliveMs);
  options.SetInt(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, kKeepAliveTimeoutMs);
  options.SetInt(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);
  options.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, kBackoffMs);
  options.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, kConnectMs);
  options.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 5 * kBackoffMs);
  options.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);  // A store of its own each.
  options.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);          // The daemon is on this host.
  options.SetMaxReceiveMessageSize(kMessageMax);
  options.SetMaxSendMessageSize(kMessageMax);
  return options;
}

}  // namespace

DaemonChannel::DaemonChannel(const std::string& address)
    : channel_(
          grpc::CreateCustomChannel(address, grpc::InsecureChannelCredentials(), ChannelOptions())),
      stub_(::mooncake::daemon::v1::StoreDaemon::NewStub(channel_)) {}

Error DaemonChannel::ErrorOf(const grpc::Status& status, const std::string& address) {
  const std::string text = fmt::format("daemon {}: {}", address, status.error_message());
  switch (status.error_code()) {
    case grpc::StatusCode::FAILED_PRECONDITION: return StaleEpoch(text);
    case grpc::StatusCode::UNAUTHENTICATED:
    case grpc::StatusCode::PERMISSION_DENIED:
    case grpc::StatusCode::NOT_FOUND: return InvalidState(text);
    case grpc::StatusCode::INVALID_ARGUMENT: return InvalidArgument(text);
    case grpc::StatusCode::RESOURCE_EXHAUSTED: return BackPressure(text);
    case grpc::StatusCode::UNIMPLEMENTED: return Unsupported(text);
    default: return TransportError(text);
  }
}

gpr_timespec DaemonChannel::Deadline(uint64_t ms) {
  return gpr_time_add(gpr_now(GPR_CLOCK_MONOTONIC),
                      gpr_time_from_millis(static_cast<int64_t>(ms), GPR_TIMESPAN));
}

struct DaemonChannel::Pulse::Question {
  grpc::ClientContext context;
  grpc::CompletionQueue queue;
  grpc::Status status;
  ::mooncake::daemon::v1::HealthReply reply;
  std::unique_ptr<grpc::ClientAsyncResponseReader<::mooncake::daemon::v1::HealthReply>> call;
};

DaemonChannel::Pulse::Pulse(DaemonChannel& channel, Runtime& runtime,
                            ::mooncake::daemon::v1::Session session)
    : channel_(channel),
      runtime_(runtime),
      session_(std::move(session)),
      next_ms_(runtime.NowMs() + kPulseAfterMs) {}

DaemonChannel::Pulse::~Pulse() {
  if (!question_) return;
  question_->context.TryCancel();
  void* tag = nullptr;
  bool ok = false;
  question_->queue.Next(&tag, &ok);
}

void DaemonChannel::Pulse::Ask() {
  question_ = std::make_unique<Question>();
  ::mooncake::daemon::v1::HealthRequest request;
  *request.mutable_session() = session_;
  question_->context.set_wait_for_ready(true);
  question_->context.set_deadline(Deadline(kPulseLimitMs));
  question_->call = channel_.stub_->AsyncHealth(&question_->context, request, &question_->queue);
  question_->call->Finish(&question_->reply, &question_->status, this);
}

bool DaemonChannel::Pulse::Gone() {
  if (!question_) {
    if (runtime_.NowMs() >= next_ms_) Ask();
    return false;
  }
  void* tag = nullptr;
  bool ok = false;
  const auto answered = question_->queue.AsyncNext(&tag, &ok, Deadline(0));
  if (answered != grpc::CompletionQueue::GOT_EVENT) return false;
  const bool gone = !question_->status.ok();
  question_.reset();
  next_ms_ = runtime_.NowMs() + kPulseAfterMs;
  return gone;
}

}  // namespace mooncake::client
