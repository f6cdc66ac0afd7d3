#include "node/quota_reserve.h"

#include <algorithm>
#include <string>
#include <utility>

namespace mooncake::node {

namespace {
constexpr uint64_t kGiveBackMs = 1'000;
constexpr uint64_t kLateMs = 50;  // For that, after the put's own time is over.
}  // namespace

QuotaReserve::QuotaReserve(Core& core, std::span<const WriteItem> items,
                           const WriteOptions& options)
    : core_(core), items_(items), options_(options), rounds_(core, options.deadline_ms) {
  admission_ = {.may_block = true, .patient = true, .deadline_ms = options.deadline_ms};
}

Charge QuotaReserve::TakeOwn(uint32_t i) {
  const auto found = own_.find(i);
  if (found == own_.end()) return {};
  Charge charge = std::move(found->second);
  own_.erase(found);
  return charge;
}

bool QuotaReserve::ReserveHere(uint32_t i, uint32_t copies, std::vector<uint32_t>* admitted,
                               std::vector<Status>* statuses) {
  const WriteItem& item = items_[i];
  if (!core_.routes.Serves(core_.routes.SlotOf(item.ref))) return false;
  Charge charge;
  const ItemCode code =
      Admit(core_, {item.ref, item.size, copies, options_.if_absent}, admission_, &charge);
  if (code == kItemRetryLater || code == kItemWrongAuthority) return false;
  if (code == kItemOk) {
    admitted->push_back(i);
    own_[i] = std::move(charge);
  } else if (code == CodeOf(ErrorCode::kConflict)) {
    (*statuses)[i] = OverQuota(item.ref, item.size);
  } else {
    (*statuses)[i] = TransportError("the tenant's quota could not be looked at");
  }
  return true;
}

v1::QuotaChargeRequest QuotaReserve::Message(std::span<const uint32_t> items,
                                             std::span<const uint32_t> copies) const {
  v1::QuotaChargeRequest request;
  WriteScope(core_.scopes.ScopeOf(items_[items[0]].ref.scope), request.mutable_scope());
  request.set_if_absent(options_.if_absent);
  const uint64_t now_ms = core_.runtime.NowMs();
  request.set_limit_ms(options_.deadline_ms - std::min(options_.deadline_ms, now_ms));
  for (uint32_t i : items) {
    AddKey(items_[i].ref.key, request.mutable_keys());
    request.add_value_sizes(items_[i].size);
    request.add_copies(copies.empty() ? 0 : copies[i]);
  }
  return request;
}

void QuotaReserve::ReserveRemote(std::vector<AuthorityGroup>& groups,
                                 std::span<const uint32_t> copies, std::vector<uint32_t>* admitted,
                                 std::vector<uint32_t>* again, std::vector<Status>* statuses) {
  std::vector<const routing::ViewNode*> peers;
  std::vector<AuthorityGroup*> asked;
  std::vector<v1::QuotaChargeRequest> requests;
  for (AuthorityGroup& group : groups) {
    const routing::ViewNode& node = rounds_.view()->node(group.node);
    if (node.lease.protocol_minor < kMinorWithQuotas) {  // It counts nothing, and refuses nothing.
      admitted->insert(admitted->end(), group.items.begin(), group.items.end());
      continue;
    }
    peers.push_back(&node);
    asked.push_back(&group);
    requests.push_back(Message(group.items, copies));
    rounds_.FillChange(group, requests.back().mutable_origin());
  }
  if (peers.empty()) return;
  auto replies = core_.peers.AskMany<v1::QuotaChargeReply, v1::QuotaChargeRequest>(
      peers, MessageType::kQuotaCharge, requests, options_.deadline_ms);
  for (size_t g = 0; g < peers.size(); ++g) {
    const std::vector<uint32_t>& items = asked[g]->items;
    const auto& reply = replies[g];
    const bool whole = reply.ok() && reply->codes_size() == static_cast<int>(items.size());
    const Error* const error = reply.ok() ? nullptr : &reply.error();
    if (!rounds_.Answered(*asked[g], error, whole, again)) continue;
    for (size_t k = 0; k < items.size(); ++k) {
      const uint32_t i = items[k];
      const ItemCode code = reply->codes(static_cast<int>(k));
      if (code == kItemOk) {
        admitted->push_back(i);
        elsewhere_[i] = peers[g]->lease.id;
      } else if (code == kItemRetryLater || code == kItemWrongAuthority) {
        rounds_.NoteCode(code, reply->revision());
        again->push_back(i);
      } else if (code == CodeOf(ErrorCode::kConflict)) {
        (*statuses)[i] = OverQuota(items_[i].ref, items_[i].size);
      } else {
        (*statuses)[i] = Error{ErrorCodeOf(code), "the tenant's quota could not be looked at"};
      }
    }
  }
}

std::vector<uint32_t> QuotaReserve::Reserve(std::vector<uint32_t> pending,
                                            std::span<const uint32_t> copies,
                                            std::vector<Status>* statuses) {
  std::vector<uint32_t> admitted;
  std::vector<KeyRef> refs;
  for (const WriteItem& item : items_) refs.push_back(item.ref);
  for (uint32_t i : pending) {
    if (!core_.routes.Serves(core_.routes.SlotOf(refs[i]))) continue;
    admission_.ahead = admission_.ahead.Plus(LoadOf(items_[i].size, copies[i]));
  }
  while (true) {
    std::erase_if(pending,
                  [&](uint32_t i) { return ReserveHere(i, copies[i], &admitted, statuses); });
    if (pending.empty()) break;
    std::vector<uint32_t> again;
    std::vector<AuthorityGroup> groups = rounds_.Group(refs, pending, {}, &again);
    ReserveRemote(groups, copies, &admitted, &again, statuses);
    pending.swap(again);
    if (pending.empty() || !rounds_.Again()) break;
  }
  for (uint32_t i : pending) (*statuses)[i] = rounds_.last_error();
  std::sort(admitted.begin(), admitted.end());
  return admitted;
}

// Best effort: what is not heard of lapses.
void QuotaReserve::GiveBack() {
  std::map<std::pair<NodeId, ScopeIndex>, std::vector<uint32_t>> groups;
  for (const auto& [i, node] : elsewhere_) groups[{node, items_[i].ref.scope}].push_back(i);
  const ViewPtr view = core_.view();
  std::vector<const routing::ViewNode*> peers;
  std::vector<v1::QuotaChargeRequest> requests;
  for (const auto& [group, items] : groups) {
    const routing::NodeIndex node = view->Find(group.first);
    if (node == routing::kNoNode) continue;
    const size_t count = std::min(items.size(), kItemsPerMessageMax);
    peers.push_back(&view->node(node));
    requests.push_back(Message(std::span(items).first(count), {}));
    requests.back().set_release(true);
    core_.peers.FillOrigin(true, requests.back().mutable_origin());
  }
  elsewhere_.clear();
  if (peers.empty()) return;
  const uint64_t now_ms = core_.runtime.NowMs();
  const uint64_t limit_ms =
      std::min(now_ms + kGiveBackMs, std::max(now_ms + kLateMs, options_.deadline_ms));
  (void)core_.peers.AskMany<v1::QuotaChargeReply, v1::QuotaChargeRequest>(
      peers, MessageType::kQuotaCharge, requests, limit_ms);
}

}  // namespace mooncake::node
