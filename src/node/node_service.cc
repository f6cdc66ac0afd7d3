#include "node/node_service.h"

#include <utility>

#include "node/arrivals.h"
#include "node/control_calls.h"
#include "node/data_calls.h"
#include "node/quota.h"

namespace mooncake::node {

namespace {

// A request and reply without payload, served by a function. A request that changes something
// is recognised when it comes again.
template <typename Request, typename Reply_, typename Function>
class MessageCall : public ServerCall {
 public:
  MessageCall(Core& core, Function serve) : core_(core), serve_(serve) {}
  ~MessageCall() override {
    if (owns_sequence_) core_.dedup.Abandon(request_.origin().node(), request_.origin().sequence());
  }

  bool Accept(const IncomingRequest& request) {
    if (request.payload_size != 0) return false;
    if (!request_.ParseFromArray(request.message.data(),
                                 static_cast<int>(request.message.size()))) {
      return false;
    }
    const v1::Origin& origin = request_.origin();
    if (origin.node().size() > kNameSizeMax) return false;  // It would be kept with the outcome.
    if (!core_.membership.IsAddressee(origin.addressee())) return false;
    if (origin.revision() > core_.view()->revision()) core_.membership.RefreshSoon();
    deadline_ms_ = request.deadline_ms;
    verdict_ = core_.dedup.Begin(origin.node(), origin.sequence(), &remembered_);
    owns_sequence_ = verdict_ == DedupTable::Verdict::kNew && origin.sequence() != 0;
    return true;
  }

  bool Prepare(bool) override { return true; }
  std::span<const MutableBytes> PayloadTargets() override { return {}; }

  bool Run(bool may_block, Reply& reply) override {
    if (verdict_ == DedupTable::Verdict::kDone) {
      reply.message = std::move(remembered_);
      return true;
    }
    Reply_ out;
    // A change whose caller has been told that it failed must not come over a later one.
    const bool late = owns_sequence_ && deadline_ms_ != 0 && core_.runtime.NowMs() >= deadline_ms_;
    if (verdict_ == DedupTable::Verdict::kNew && !late) {
      if (!serve_(core_, request_, may_block, &out)) return false;
    } else if constexpr (requires { out.set_still_running(true); }) {
      out.set_still_running(true);
    }  // Still running, or late: an empty reply, which the asker takes as "retry".
    reply.message = out.SerializeAsString();
    if (owns_sequence_) {
      core_.dedup.Finish(request_.origin().node(), request_.origin().sequence(), reply.message);
      owns_sequence_ = false;
    }
    return true;
  }

 private:
  Core& core_;
  Function serve_;
  Request request_;
  uint64_t deadline_ms_ = 0;
  DedupTable::Verdict verdict_ = DedupTable::Verdict::kNew;
  bool owns_sequence_ = false;
  std::string remembered_;
};

template <typename Request, typename Reply_, typename Function>
std::unique_ptr<ServerCall> AcceptMessage(Core& core, const IncomingRequest& request,
                                          Function serve) {
  auto call = std::make_unique<MessageCall<Request, Reply_, Function>>(core, serve);
  if (!call->Accept(request)) return nullptr;
  return call;
}

// Adapts the functions that never block and report nonsense through `valid`: the asker gets an
// empty reply, which it treats as a failure.
template <typename Request, typename Reply_>
auto Quick(void (*serve)(Core&, const Request&, Reply_*, bool*)) {
  return [serve](Core& core, const Request& request, bool, Reply_* reply) {
    bool valid = true;
    serve(core, request, reply, &valid);
    if (!valid) {
      reply->Clear();
      core.metrics.GetCounter("rejected_message_total", {}).Increment();
    }
    return true;
  };
}

// The same for those that have to block at times.
template <typename Request, typename Reply_>
auto AtTimesSlow(bool (*serve)(Core&, const Request&, bool, Reply_*, bool*)) {
  return [serve](Core& core, const Request& request, bool may_block, Reply_* reply) {
    bool valid = true;
    const bool served = serve(core, request, may_block, reply, &valid);
    if (served && !valid) {
      reply->Clear();
      core.metrics.GetCounter("rejected_message_total", {}).Increment();
    }
    return served;
  };
}

// The same for those that take a while (they walk tables): off the event loop.
template <typename Request, typename Reply_>
auto Slow(void (*serve)(Core&, const Request&, Reply_*, bool*)) {
  return [quick = Quick(serve)](Core& core, const Request& request, bool may_block, Reply_* reply) {
    return may_block && quick(core, request, may_block, reply);
  };
}

constexpr uint64_t kThawMs = 2'000;
// Of who is asked what it knew of slots: two that stood still at once ask each other before either
// has done with its own, and whoever has the other for a suspect waits no longer. What it says is
// as of when it stood still.
constexpr uint64_t kThawOfPullMs = kSuspectTimeoutMs / 2;

// Serves a call only after a fresh look at the membership: this process stood still, and what it
// answered for may have moved meanwhile.
class ThawedCall : public ServerCall {
 public:
  ThawedCall(Core& core, std::unique_ptr<ServerCall> call, uint64_t wait_ms)
      : core_(core), call_(std::move(call)), wait_ms_(wait_ms) {}
  bool Prepare(bool may_block) override {
    if (core_.membership.Frozen()) {
      if (!may_block) return false;
      core_.membership.AwaitThaw(core_.runtime.NowMs() + wait_ms_);
    }
    return call_->Prepare(may_block);
  }
  std::span<const MutableBytes> PayloadTargets() override { return call_->PayloadTargets(); }
  bool Run(bool may_block, Reply& reply) override { return call_->Run(may_block, reply); }

 private:
  Core& core_;
  std::unique_ptr<ServerCall> call_;
  const uint64_t wait_ms_;
};

std::unique_ptr<ServerCall> AcceptByType(Core* core, const IncomingRequest& request) {
  switch (static_cast<MessageType>(request.type)) {
    case MessageType::kPing:
      return AcceptMessage<v1::PingRequest, v1::PingReply>(*core, request, ServePing);
    case MessageType::kPut: return AcceptPut(*core, request);
    case MessageType::kGet: return AcceptGet(*core, request);
    case MessageType::kRead: return AcceptRead(*core, request);
    case MessageType::kWrite: return AcceptWrite(*core, request);
    case MessageType::kExist:
      return AcceptMessage<v1::ExistRequest, v1::ExistReply>(*core, request, Quick(ServeExist));
    case MessageType::kRoute:
      return AcceptMessage<v1::RouteRequest, v1::RouteReply>(*core, request, Quick(ServeRoute));
    case MessageType::kPublish:
      return AcceptMessage<v1::PublishRequest, v1::PublishReply>(*core, request,
                                                                 AtTimesSlow(ServePublish));
    case MessageType::kRemove:
      return AcceptMessage<v1::RemoveRequest, v1::RemoveReply>(*core, request, Quick(ServeRemove));
    case MessageType::kRemoveAll:
      return AcceptMessage<v1::RemoveAllRequest, v1::RemoveAllReply>(*core, request,
                                                                     Slow(ServeRemoveAll));
    case MessageType::kNotice:
      return AcceptMessage<v1::NoticeRequest, v1::NoticeReply>(*core, request, Quick(ServeNotice));
    case MessageType::kCheck:
      return AcceptMessage<v1::CheckRequest, v1::CheckReply>(*core, request, Quick(ServeCheck));
    case MessageType::kPull:
      return AcceptMessage<v1::PullRequest, v1::PullReply>(*core, request, Slow(ServePull));
    case MessageType::kInventory:
      return AcceptMessage<v1::InventoryRequest, v1::InventoryReply>(*core, request,
                                                                     Slow(ServeInventory));
    case MessageType::kMirror:
      return AcceptMessage<v1::MirrorRequest, v1::MirrorReply>(*core, request, Quick(ServeMirror));
    case MessageType::kMigrate:
      return AcceptMessage<v1::MigrateRequest, v1::MigrateReply>(*core, request,
                                                                 Slow(ServeMigrate));
    case MessageType::kQuotaCharge:
      return AcceptMessage<v1::QuotaChargeRequest, v1::QuotaChargeReply>(
          *core, request, AtTimesSlow(ServeQuotaCharge));
    case MessageType::kQuotaGrant:
      return AcceptMessage<v1::QuotaGrantRequest, v1::QuotaGrantReply>(*core, request,
                                                                       Quick(ServeQuotaGrant));
    case MessageType::kQuotaSurvey:
      return AcceptMessage<v1::QuotaSurveyRequest, v1::QuotaSurveyReply>(
          *core, request, AtTimesSlow(ServeQuotaSurvey));
  }
  return nullptr;
}

}  // namespace

std::unique_ptr<ServerCall> NodeService::Accept(const IncomingRequest& request) {
  Core* core = core_.load(std::memory_order_acquire);
  if (core == nullptr) return nullptr;
  std::unique_ptr<ServerCall> call = AcceptByType(core, request);
  if (call == nullptr || !core->membership.Frozen()) return call;
  const auto type = static_cast<MessageType>(request.type);
  const bool pulls = type == MessageType::kPull || type == MessageType::kInventory;
  return std::make_unique<ThawedCall>(*core, std::move(call), pulls ? kThawOfPullMs : kThawMs);
}

}  // namespace mooncake::node
