#include "daemon/calls.h"

#include <fmt/format.h>

#include <cstring>
#include <map>

#include "client/call_metrics.h"
#include "client/dummy/side_channel.h"
#include "daemon/lease_reads.h"
#include "mooncake/observability.h"

namespace mooncake::daemon {

using client::CallFrame;
using client::CallType;

namespace {

constexpr size_t kItemsMax = 8'192;
constexpr uint64_t kLeaseGraceMs = 15'000;  // What a client gets on top of what it may count on.

Error Malformed(Sessions& sessions, const std::string& what) {
  sessions.NoteRefused("call", "a malformed call of a dummy client: " + what);
  return InvalidArgument("malformed request: " + what);
}

// The name under which a client's call is counted, as a constant: what is not one of the API's
// names is not taken from it.
std::string_view ApiOf(const std::string& name) {
  constexpr auto kNone = static_cast<client::Operation>(client::kOperations);
  const client::Operation operation = client::OperationOf(name, kNone);
  return operation == kNone ? std::string_view() : client::NameOf(operation);
}

bool ReadKeys(const v1::Keys& keys, std::vector<std::string_view>* out) {
  const std::string_view blob = keys.blob();
  if (static_cast<size_t>(keys.sizes_size()) > kItemsMax) return false;
  uint64_t at = 0;
  out->reserve(static_cast<size_t>(keys.sizes_size()));
  for (uint32_t size : keys.sizes()) {
    if (size > blob.size() - at) return false;
    out->push_back(blob.substr(at, size));
    at += size;
  }
  return at == blob.size();
}

template <typename Reply>
void AddError(const Error& error, Reply* reply) {
  reply->add_codes(static_cast<int32_t>(error.code));
  reply->add_errors(error.context);
}

ReplicateConfig PolicyOf(const v1::ReplicatePolicy& policy) {
  ReplicateConfig replicate;
  replicate.replica_num = policy.replica_num();
  replicate.preferred_segments.assign(policy.preferred_segments().begin(),
                                      policy.preferred_segments().end());
  replicate.preferred_storage_owners.assign(policy.preferred_storage_owners().begin(),
                                            policy.preferred_storage_owners().end());
  replicate.prefer_local = policy.prefer_local();
  replicate.with_soft_pin = policy.with_soft_pin();
  replicate.prefer_alloc_in_same_node = policy.prefer_alloc_in_same_node();
  return replicate;
}

// The values of a put, where they lie.
struct PutPlan {
  std::vector<std::string_view> keys;
  std::vector<RegionPtr> regions;  // Keeps them mapped.
  std::vector<ConstBytes> pieces;
  std::vector<std::pair<size_t, size_t>> pieces_of;  // Begin and count, of each value.
  std::vector<bool> refused;                         // A piece names no memory of the client's.
};

bool ReadPut(const v1::PutRequest& request, const Session& session, PutPlan* plan) {
  if (!ReadKeys(request.keys(), &plan->keys)) return false;
  const size_t values = plan->keys.size();
  const int pieces = request.regions_size();
  if (static_cast<size_t>(request.piece_counts_size()) != values ||
      request.offsets_size() != pieces || request.sizes_size() != pieces) {
    return false;
  }
  plan->pieces_of.reserve(values);
  plan->refused.reserve(values);
  plan->pieces.reserve(static_cast<size_t>(pieces));
  std::map<uint64_t, RegionPtr> known;
  int next = 0;
  for (size_t i = 0; i < values; ++i) {
    const uint32_t count = request.piece_counts(static_cast<int>(i));
    if (count > static_cast<uint32_t>(pieces - next)) return false;
    plan->pieces_of.emplace_back(plan->pieces.size(), count);
    bool refused = false;
    for (uint32_t p = 0; p < count; ++p, ++next) {
      const uint64_t id = request.regions(next);
      ConstBytes memory = BytesOf(request.inline_bytes());
      if (id != 0) {
        auto [found, added] = known.try_emplace(id);
        if (added) found->second = session.Region(id);
        memory = found->second ? ConstBytes(found->second->bytes()) : ConstBytes();
      }
      const uint64_t offset = request.offsets(next);
      const uint64_t size = request.sizes(next);
      const bool inside = offset <= memory.size() && size <= memory.size() - offset;
      refused |= !inside;
      plan->pieces.push_back(inside ? memory.subspan(offset, size) : ConstBytes());
    }
    plan->refused.push_back(refused);
  }
  for (auto& [id, region] : known) plan->regions.push_back(std::move(region));
  return next == pieces;
}

// True: the client needs the lease to read it.
bool AddPlaced(const Result<Placed>& value, bool allow_inline, v1::AcquireReply* reply) {
  if (!value.ok()) AddError(value.error(), reply);
  if (value.ok()) reply->add_codes(0);
  const Placed placed = value.ok() ? *value : Placed{};
  const bool fits = placed.size <= client::kInlineValueMax &&
                    reply->inline_bytes().size() + placed.size <= client::kInlineMessageMax;
  const bool inlined = placed.size == 0 || (allow_inline && fits);
  reply->add_sizes(placed.size);
  reply->add_areas(inlined ? 0 : placed.area);
  reply->add_offsets(inlined ? reply->inline_bytes().size() : placed.offset);
  reply->add_checksums(placed.checksum);
  reply->add_checked(placed.checked);
  if (inlined) reply->mutable_inline_bytes()->append(TextOf(placed.bytes));
  return !inlined;
}

}  // namespace

Status Calls::Put(Session& session, const v1::PutRequest& request, v1::CodesReply* reply) {
  const ApiScope scope(ApiOf(request.api()));
  sessions_.DropReleased();  // What has been read may make room.
  PutPlan plan;
  if (!ReadPut(request, session, &plan)) return Malformed(sessions_, "put");
  std::function<bool()> wanted;
  if (!plan.regions.empty()) {
    wanted = session.Watch(request.mark().slot(), request.mark().sequence());
    if (!wanted) return Malformed(sessions_, "a put from regions needs a mark");
  }
  std::vector<PutItem> items;
  items.reserve(plan.keys.size());
  for (size_t i = 0; i < plan.keys.size(); ++i) {
    if (plan.refused[i]) {
      ++ApiScope::OfThread().refused;  // Counted with the others.
      continue;
    }
    const auto [begin, count] = plan.pieces_of[i];
    items.push_back({plan.keys[i], std::span(plan.pieces).subspan(begin, count)});
  }
  const ReplicateConfig replicate = PolicyOf(request.policy());
  const PutOptions options{request.tenant(), request.has_policy() ? &replicate : nullptr,
                           request.if_absent()};
  const std::vector<Status> statuses = store_.PutWanted(items, options, std::move(wanted));
  size_t sent = 0;
  for (bool refused : plan.refused) {
    if (refused) {
      sessions_.NoteRefused("region", "a put from memory that is not registered");
      AddError(InvalidArgument("the memory is not registered with the daemon"), reply);
    } else if (const Status& status = statuses[sent++]; !status.ok()) {
      AddError(status.error(), reply);
    } else {
      reply->add_codes(0);
    }
  }
  return Ok();
}

Status Calls::Acquire(Session& session, const v1::AcquireRequest& request,
                      v1::AcquireReply* reply) {
  const ApiScope scope(ApiOf(request.api()));
  std::vector<std::string_view> keys;
  const int count = request.keys().sizes_size();
  const bool ranged = request.offsets_size() > 0;
  if (!ReadKeys(request.keys(), &keys) || request.limits_size() != count ||
      (ranged && request.offsets_size() != count)) {
    return Malformed(sessions_, "acquire");
  }
  const uint64_t now_ms = store_.parts().runtime->NowMs();
  session.DropReleased(now_ms);
  LeaseRequest wanted{keys, request.tenant(), {}, {}, session.domain(), 0};
  wanted.limits = {request.limits().data(), keys.size()};
  if (ranged) wanted.offsets = {request.offsets().data(), keys.size()};
  wanted.deadline_ms = now_ms + store_.config().request_timeout_ms;
  Lease lease;
  const auto placed = LeaseValues(store_, scratch_, wanted, &lease);
  for (auto* column : {reply->mutable_sizes(), reply->mutable_areas(), reply->mutable_offsets(),
                       reply->mutable_checksums()}) {
    column->Reserve(count);
  }
  reply->mutable_codes()->Reserve(count);
  reply->mutable_checked()->Reserve(count);
  bool held = false;
  for (const Result<Placed>& value : placed) {
    held |= AddPlaced(value, request.allow_inline(), reply);
  }
  if (!held) return Ok();
  lease.expires_ms = store_.parts().runtime->NowMs() + kLeaseMs + kLeaseGraceMs;
  return session.Keep(std::move(lease), request.mark().slot(), request.mark().sequence());
}

Status Calls::Exist(const v1::KeysRequest& request, v1::CodesReply* reply) {
  const ApiScope scope(ApiOf(request.api()));
  std::vector<std::string_view> keys;
  if (!ReadKeys(request.keys(), &keys)) return Malformed(sessions_, "exist");
  for (const auto& result : store_.ExistMany(keys, request.tenant())) {
    if (result.ok()) {
      reply->add_codes(static_cast<int32_t>(*result));
    } else {
      AddError(result.error(), reply);
    }
  }
  return Ok();
}

Status Calls::Remove(const v1::KeysRequest& request, v1::CodesReply* reply) {
  const ApiScope scope(ApiOf(request.api()));
  sessions_.DropReleased();  // So that its space is free when the key is gone.
  std::vector<std::string_view> keys;
  if (!ReadKeys(request.keys(), &keys)) return Malformed(sessions_, "remove");
  for (const Status& status : store_.RemoveMany(keys, request.tenant())) {
    if (status.ok()) {
      reply->add_codes(0);
    } else {
      AddError(status.error(), reply);
    }
  }
  return Ok();
}

Status Calls::Sizes(const v1::KeysRequest& request, v1::SizesReply* reply) {
  const ApiScope scope(ApiOf(request.api()));
  std::vector<std::string_view> keys;
  if (!ReadKeys(request.keys(), &keys)) return Malformed(sessions_, "sizes");
  for (std::string_view key : keys) {
    const Result<uint64_t> size = store_.GetSize(key, request.tenant());
    reply->add_sizes(size.value_or(0));
    if (size.ok()) {
      reply->add_codes(0);
    } else {
      AddError(size.error(), reply);
    }
  }
  return Ok();
}

Status Calls::Health(v1::HealthReply* reply) {
  reply->set_status(store_.CheckHealth().ok() ? 0 : 1);
  return Ok();
}

Status Calls::RemoveAll(const v1::RemoveAllRequest& request, v1::RemoveAllReply* reply) {
  const Result<uint64_t> removed = store_.RemoveAll(request.tenant());
  if (removed.ok()) {
    reply->set_removed(*removed);
  } else {
    reply->set_code(static_cast<int32_t>(removed.code()));
    reply->set_error(removed.error().context);
  }
  return Ok();
}

Status Calls::Metrics(v1::MetricsReply* reply) {
  sessions_.RefreshGauges();
  reply->set_text(store_.MetricsText());
  return Ok();
}

namespace {

template <typename Request, typename Reply, typename Call>
Status Answer(Sessions& sessions, CallFrame* frame, Request& request, Reply& reply, Call call) {
  const CallType type = frame->header().type;
  reply.Clear();
  Status status =
      frame->Unpack(&request) ? call(request, &reply) : Malformed(sessions, "its bytes");
  if (status.ok() && frame->Pack(type, 0, reply)) return Ok();
  const Error error = status.ok() ? BackPressure("too large an answer; ask for fewer items")
                                  : std::move(status).error();
  const MutableBytes text =
      frame->Start(type, static_cast<int32_t>(error.code), error.context.size());
  std::memcpy(text.data(), error.context.data(), error.context.size());
  return Ok();
}

}  // namespace

// Those whose messages are not worth keeping.
Status Calls::ServeRare(CallFrame* frame) {
  v1::HealthRequest health;
  v1::HealthReply healthy;
  v1::RemoveAllRequest remove_all;
  v1::RemoveAllReply removed;
  v1::MetricsRequest metrics;
  v1::MetricsReply measured;
  switch (frame->header().type) {
    case CallType::kHealth:
      return Answer(sessions_, frame, health, healthy,
                    [&](auto&, auto* reply) { return Health(reply); });
    case CallType::kRemoveAll:
      return Answer(sessions_, frame, remove_all, removed,
                    [&](auto& request, auto* reply) { return RemoveAll(request, reply); });
    default:
      return Answer(sessions_, frame, metrics, measured,
                    [&](auto&, auto* reply) { return Metrics(reply); });
  }
}

Status Calls::Serve(Session& session, Messages& messages, CallFrame* frame) {
  switch (frame->header().type) {
    case CallType::kPut:
      return Answer(sessions_, frame, messages.put, messages.codes,
                    [&](auto& request, auto* reply) { return Put(session, request, reply); });
    case CallType::kAcquire:
      return Answer(sessions_, frame, messages.acquire, messages.acquired,
                    [&](auto& request, auto* reply) { return Acquire(session, request, reply); });
    case CallType::kExist:
      return Answer(sessions_, frame, messages.keys, messages.codes,
                    [&](auto& request, auto* reply) { return Exist(request, reply); });
    case CallType::kRemove:
      return Answer(sessions_, frame, messages.keys, messages.codes,
                    [&](auto& request, auto* reply) { return Remove(request, reply); });
    case CallType::kSizes:
      return Answer(sessions_, frame, messages.keys, messages.sizes,
                    [&](auto& request, auto* reply) { return Sizes(request, reply); });
    case CallType::kHealth:
    case CallType::kRemoveAll:
    case CallType::kMetrics: return ServeRare(frame);
  }
  return InvalidArgument("no such call");
}

}  // namespace mooncake::daemon
