#include "node/quota.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "node/authority.h"
#include "node/quota_eviction.h"

namespace mooncake::node {

namespace {

constexpr int kQuestionsMax = 4;  // One, one more after a survey, and a lost race or two.
// How often a question makes room among the tenant's own values. Each time takes a question more,
// or two where another put was faster.
constexpr int kEvictionsMax = 8;
constexpr uint64_t kQuestionMs = 2'000;
constexpr uint64_t kSurveyMs = 1'000;
// Between two tries, doubled with each. Whether another asker is done is seen here; whether the
// views have come to rest takes messages to every authority.
constexpr uint64_t kWaitMinMs = 1;
constexpr uint64_t kTurnWaitMaxMs = 4;
constexpr uint64_t kViewWaitMaxMs = 64;
// What LedgerQuestion::Ask answers besides the codes of Admission::asked.
constexpr ItemCode kNotOurTurn = 1;
constexpr ItemCode kAllGranted = 2;
constexpr uint64_t kPatienceMs = 3'000;
// Of a request from a peer, which asks again: few threads serve those of all tenants.
constexpr uint64_t kServerPatienceMs = 100;
constexpr uint64_t kChargeMsMax = 3'600'000;
constexpr uint32_t kCopiesMax = 64;

bool KnowsQuotas(const routing::ViewNode& node) {
  return node.authority && node.lease.protocol_minor >= kMinorWithQuotas;
}

// All nodes of one view agree on it. kNoNode: nobody can keep one.
routing::NodeIndex LedgerNode(const routing::ClusterView& view, const std::string& tenant) {
  for (routing::NodeIndex node : view.Ranks(LedgerSlot(view.slots(), tenant))) {
    if (KnowsQuotas(view.node(node))) return node;
  }
  for (routing::NodeIndex node = 0; node < view.nodes().size(); ++node) {
    if (KnowsQuotas(view.node(node))) return node;
  }
  return routing::kNoNode;
}

std::set<std::string> MembersOf(const routing::ClusterView& view) {
  std::set<std::string> members;
  for (const routing::ViewNode& node : view.nodes()) {
    if (KnowsQuotas(node)) members.insert(node.lease.id.ToString());
  }
  return members;
}

void WriteLoad(const Load& load, v1::Load* out) {
  out->set_bytes(load.bytes);
  out->set_objects(load.objects);
}
Load ReadLoad(const v1::Load& load) { return {load.bytes(), load.objects()}; }

void WriteStanding(const Standing& standing, v1::Standing* out) {
  out->set_node(standing.node);
  out->set_revision(standing.revision);
  out->set_attempt(standing.attempt);
  WriteLoad(standing.granted, out->mutable_granted());
}
Standing ReadStanding(const v1::Standing& standing) {
  return {standing.node(), standing.revision(), standing.attempt(), ReadLoad(standing.granted())};
}

// One caller's request for more, from the first question to the last.
class LedgerQuestion {
 public:
  // `may_evict`: the tenant's oldest values may make room for this put, but not `spared`, the hash
  // of the key that it puts.
  LedgerQuestion(Core& core, TenantAccount& account, uint64_t deadline_ms, bool may_evict,
                 uint64_t spared)
      : core_(core),
        account_(account),
        deadline_ms_(deadline_ms),
        may_evict_(may_evict),
        spared_(spared) {}
  ~LedgerQuestion() {
    if (asking_) account_.EndAsking();
  }

  // Codes as of Admission::asked, or kNotOurTurn: another caller is asking, and what it gets may do
  // for this one as well; or kAllGranted: all that was asked for, so that there may be more where
  // it came from. `growth`: what there is to be room for afterwards. `ahead`: and what else, if
  // nothing has to go for it.
  ItemCode Ask(const Load& growth, Load ahead) {
    asking_ = account_.BeginAsking();
    if (!asking_) return kNotOurTurn;
    bool surveyed = false;
    int evictions = 0;
    for (int question = 0; question < kQuestionsMax + 2 * evictions; ++question) {
      const ViewPtr view = core_.view();
      const routing::NodeIndex ledger = LedgerNode(*view, account_.tenant());
      if (ledger == routing::kNoNode) return kItemRetryLater;
      const v1::QuotaGrantRequest request = Request(growth.Plus(ahead), surveyed);
      if (request.asker().revision() != view->revision()) return kItemRetryLater;
      v1::QuotaGrantReply reply;
      const ItemCode code = Put(*view, ledger, request, &reply);
      const Load amount = code == kItemOk ? ReadLoad(reply.amount()) : Load{};
      account_.EndAttempt(amount, view->revision());
      if (code != kItemOk) return code;
      if (reply.survey_first()) {
        if (surveyed) return kItemRetryLater;  // Views are moving.
        Survey(*view, growth);
        surveyed = true;
        continue;
      }
      if (ReadLoad(request.want()).Within(amount)) return kAllGranted;
      if (!may_evict_ || !surveyed) return kItemOk;
      if (account_.Missing(growth).empty()) return kAllGranted;
      if (evictions++ == kEvictionsMax) return kItemRetryLater;
      if (!MakeRoom(*view, growth)) return kItemOk;
      if (account_.Missing(growth).empty()) return kAllGranted;
      surveyed = false;
      ahead = {};
    }
    return kItemRetryLater;
  }

 private:
  v1::QuotaGrantRequest Request(const Load& growth, bool surveyed) {
    v1::QuotaGrantRequest request;
    core_.peers.FillOrigin(false, request.mutable_origin());
    request.set_tenant(account_.tenant());
    Standing own = core_.meter.Stand(&account_, false, core_.runtime.NowMs());
    own.node = core_.membership.self_name();
    own.attempt = account_.BeginAttempt();
    WriteStanding(own, request.mutable_asker());
    WriteLoad(account_.Missing(growth), request.mutable_want());
    request.set_surveyed(surveyed);
    for (const Standing& other : others_) WriteStanding(other, request.add_others());
    return request;
  }

  ItemCode Put(const routing::ClusterView& view, routing::NodeIndex ledger,
               const v1::QuotaGrantRequest& request, v1::QuotaGrantReply* reply) {
    if (view.node(ledger).lease.id == core_.membership.self()) {
      bool valid = true;
      ServeQuotaGrant(core_, request, reply, &valid);
    } else {
      const uint64_t limit_ms = std::min(deadline_ms_, core_.runtime.NowMs() + kQuestionMs);
      auto answer = core_.peers.Ask<v1::QuotaGrantReply>(
          view.node(ledger), MessageType::kQuotaGrant, request, limit_ms);
      if (!answer.ok()) return CodeOf(ErrorCode::kTransport);
      *reply = *std::move(answer);
      // An empty reply: it could not make sense of the question.
      if (reply->revision() == 0) return CodeOf(ErrorCode::kTransport);
    }
    const ItemCode code = reply->code();
    if (code == kItemOk || code == CodeOf(ErrorCode::kTransport)) return code;
    if (reply->revision() > view.revision()) core_.membership.RefreshSoon();
    return kItemRetryLater;
  }

  v1::QuotaSurveyRequest SurveyRequest() const {
    v1::QuotaSurveyRequest request;
    core_.peers.FillOrigin(false, request.mutable_origin());
    request.set_tenant(account_.tenant());
    return request;
  }

  // Notes how those that answer stand; false: not all of them do.
  bool AskPeers(std::span<const routing::ViewNode* const> peers,
                const std::vector<v1::QuotaSurveyRequest>& requests,
                std::vector<Result<v1::QuotaSurveyReply>>* replies) {
    others_.clear();
    if (peers.empty()) return true;
    *replies = core_.peers.AskMany<v1::QuotaSurveyReply, v1::QuotaSurveyRequest>(
        peers, MessageType::kQuotaSurvey, requests,
        std::min(deadline_ms_, core_.runtime.NowMs() + kSurveyMs));
    bool all = true;
    for (size_t i = 0; i < peers.size(); ++i) {
      Result<v1::QuotaSurveyReply>& reply = (*replies)[i];
      // A peer speaks for itself only.
      const bool good = reply.ok() && reply->standing().node() == peers[i]->lease.id.ToString();
      if (good) others_.push_back(ReadStanding(reply->standing()));
      all = all && good;
    }
    return all;
  }

  // How the other authorities stand and, where something may have to go, what would go first.
  void Survey(const routing::ClusterView& view, const Load& missing) {
    std::vector<const routing::ViewNode*> peers;
    for (const routing::ViewNode& node : view.nodes()) {
      if (KnowsQuotas(node) && node.lease.id != core_.membership.self()) peers.push_back(&node);
    }
    v1::QuotaSurveyRequest request = SurveyRequest();
    if (may_evict_) {
      WriteLoad(missing, request.mutable_missing());
      request.set_spared(spared_);
    }
    std::vector<Result<v1::QuotaSurveyReply>> replies;
    const bool all =
        AskPeers(peers, std::vector<v1::QuotaSurveyRequest>(peers.size(), request), &replies);
    (all ? core_.meter.counters().reconciled : core_.meter.counters().unreconciled).Increment();
    if (!may_evict_) return;
    oldest_.clear();
    from_.clear();
    oldest_.push_back(OldestHere(core_, account_, missing, spared_));
    from_.push_back(core_.membership.self());
    for (size_t i = 0; i < peers.size(); ++i) {
      if (!replies[i].ok()) continue;
      oldest_.push_back(ReadVictims(*replies[i], from_.size()));
      from_.push_back(peers[i]->lease.id);
    }
  }

  // Removes the oldest values that the last survey has found, for a growth that the ledger had no
  // room for. False: there are not enough, and none has gone.
  bool MakeRoom(const routing::ClusterView& view, const Load& growth) {
    Load missing = account_.Missing(growth);
    if (const Load over = OverLimit(); !over.empty()) {  // The quota was set below what there is.
      missing = missing.Plus(over);
      Survey(view, missing);
    }
    std::vector<const routing::ViewNode*> peers;
    std::vector<v1::QuotaSurveyRequest> requests;
    std::vector<int> request_of(from_.size(), -1);
    const std::vector<Victim> victims = ChooseVictims(oldest_, missing);
    for (const Victim& victim : victims) {
      if (victim.from == 0) {
        (void)EvictAged(core_, account_, victim.age);
        continue;
      }
      const routing::NodeIndex node = view.Find(from_[victim.from]);
      if (node == routing::kNoNode) continue;
      int& at = request_of[victim.from];
      if (at < 0) {
        at = static_cast<int>(peers.size());
        peers.push_back(&view.node(node));
        requests.push_back(SurveyRequest());
      }
      WriteVictim(victim, requests[static_cast<size_t>(at)].add_evict());
    }
    std::vector<Result<v1::QuotaSurveyReply>> replies;
    (void)AskPeers(peers, requests, &replies);
    return !victims.empty();
  }

  // By how much what all nodes have, as of the last survey, is over the quota.
  Load OverLimit() const {
    const std::optional<Load> limit = account_.limit();
    if (!limit) return {};
    Load total = account_.amounts().granted;
    for (const Standing& other : others_) total = total.Plus(other.granted);
    return total.Minus(*limit);
  }

  Core& core_;
  TenantAccount& account_;
  const uint64_t deadline_ms_;
  const bool may_evict_;
  const uint64_t spared_;
  bool asking_ = false;
  std::vector<Standing> others_;    // That have answered last.
  std::vector<VictimList> oldest_;  // Of those in `from_`; the first one is this node.
  std::vector<NodeId> from_;
};

}  // namespace

namespace {

// Waits before what can be tried again is. False: for too long already.
bool AwaitRoom(Core& core, Admission& admission, uint64_t wait_max_ms) {
  const uint64_t now_ms = core.runtime.NowMs();
  const uint64_t patience_ms = admission.patient ? kPatienceMs : kServerPatienceMs;
  if (admission.waits_until_ms == 0) {
    admission.waits_until_ms = std::min(admission.deadline_ms, now_ms + patience_ms);
    admission.wait_ms = kWaitMinMs;
  }
  if (now_ms >= admission.waits_until_ms) return false;
  const uint64_t wait_ms = std::min(admission.wait_ms, wait_max_ms);
  admission.wait_ms = std::min(2 * admission.wait_ms, kViewWaitMaxMs);
  core.runtime.SleepMs(std::min(wait_ms, admission.waits_until_ms - now_ms));
  return true;
}

}  // namespace

ItemCode Admit(Core& core, const AdmissionItem& item, Admission& admission, Charge* charge) {
  TenantAccount* account = core.meter.Find(item.ref.scope);
  if (account == nullptr) return kItemOk;
  const Load after = LoadOf(item.size, item.copies);
  const Load ahead = admission.ahead.Minus(after);
  QuotaCounters& counters = core.meter.counters();
  int grants = 0;
  while (true) {
    Route route;
    const ItemCode present = core.routes.Lookup(item.ref, &route, nullptr);
    if (present == kItemRetryLater || present == kItemWrongAuthority) return present;
    if (present == kItemOk && item.if_absent) return kItemOk;
    const Load before = present == kItemOk ? LoadOf(route.size, route.replicas.size()) : Load{};
    const Load growth = after.Minus(before);
    if (account->TryCharge(growth, core.runtime.NowMs(), charge)) {
      admission.ahead = ahead;
      admission.waits_until_ms = 0;
      counters.admitted.Increment();
      return kItemOk;
    }
    if (admission.asked == kItemOk) {
      admission.ahead = ahead;
      if (account->evicts()) admission.asked = kItemRetryLater;  // For another value there may be.
      counters.refused.Increment();
      return CodeOf(ErrorCode::kConflict);
    }
    if (!admission.may_block) {
      admission.would_block = true;
      return kItemRetryLater;
    }
    ItemCode asked = admission.asked;
    if (asked == kItemRetryLater) {
      // A value that is larger than the whole quota evicts nothing.
      const std::optional<Load> limit = account->limit();
      const bool may_evict = account->evicts() && limit && after.Within(*limit);
      LedgerQuestion question(core, *account, admission.deadline_ms, may_evict, item.ref.hash);
      asked = question.Ask(growth, ahead);
      // What was granted is not held for this request: other puts may have used it by now.
      if (asked != kNotOurTurn && asked != kAllGranted) admission.asked = asked;
    }
    if (asked == kItemOk || (asked == kAllGranted && grants++ == 0)) continue;
    const bool views_move = asked == kItemRetryLater;
    if (asked == CodeOf(ErrorCode::kTransport)) break;
    if (views_move && !admission.patient) return kItemRetryLater;
    if (AwaitRoom(core, admission, views_move ? kViewWaitMaxMs : kTurnWaitMaxMs)) continue;
    if (!admission.patient) return kItemRetryLater;
    break;
  }
  counters.failed.Increment();
  return CodeOf(ErrorCode::kTransport);
}

Error OverQuota(const KeyRef& ref, uint64_t size) {
  Error error = Conflict(
      fmt::format("{}: {} bytes would go over the tenant's quota", ref.key.substr(0, 128), size));
  error.reason = ErrorReason::kOverQuota;
  return error;
}

bool ServeQuotaCharge(Core& core, const v1::QuotaChargeRequest& request, bool may_block,
                      v1::QuotaChargeReply* reply, bool* valid) {
  if (!may_block) return false;  // It may have to ask the ledger, and nothing is undone half-way.
  const auto scope = core.scopes.Intern(ReadScope(request.scope()));
  const auto writer = core.names.IndexOf(request.origin().node());
  std::vector<std::string_view> keys;
  *valid = scope && writer && ReadKeys(request.keys(), &keys) &&
           request.value_sizes_size() == static_cast<int>(keys.size()) &&
           request.copies_size() == static_cast<int>(keys.size());
  if (!*valid) return true;
  const uint64_t now_ms = core.runtime.NowMs();
  const uint64_t limit_ms = std::min(request.limit_ms(), kChargeMsMax);
  TenantAccount* account = core.meter.Find(scope->index);
  Admission admission{.may_block = true, .deadline_ms = now_ms + limit_ms};
  for (int i = 0; i < request.value_sizes_size(); ++i) {
    *valid = request.value_sizes(i) <= kPayloadSizeMax && request.copies(i) <= kCopiesMax;
    if (!*valid) return true;
    admission.ahead = admission.ahead.Plus(LoadOf(request.value_sizes(i), request.copies(i)));
  }
  for (size_t i = 0; i < keys.size(); ++i) {
    const int at = static_cast<int>(i);
    const AdmissionItem item{MakeKeyRef(*scope, keys[i]), request.value_sizes(at),
                             request.copies(at), request.if_absent()};
    ItemCode code = kItemOk;
    if (request.release()) {
      if (account != nullptr) account->Take(*writer, item.ref).Release();
    } else {
      Charge charge;
      code = Admit(core, item, admission, &charge);
      // Not by the look-up above: the tenant's first quota may have come since.
      TenantAccount* const charged = charge.account();
      if (charge && !charged->Keep(*writer, item.ref, std::move(charge), now_ms + limit_ms)) {
        code = CodeOf(ErrorCode::kBackPressure);
      }
    }
    reply->add_codes(code);
  }
  reply->set_revision(core.view()->revision());
  return true;
}

void ServeQuotaGrant(Core& core, const v1::QuotaGrantRequest& request, v1::QuotaGrantReply* reply,
                     bool* valid) {
  const ViewPtr view = core.view();
  QuotaLedger::Question question;
  question.tenant = request.tenant();
  question.revision = view->revision();
  question.members = MembersOf(*view);
  *valid = request.asker().node() == request.origin().node() &&
           static_cast<size_t>(request.others_size()) <= view->nodes().size() + kItemsPerMessageMax;
  if (!*valid) return;
  reply->set_revision(view->revision());
  reply->set_code(kItemRetryLater);
  const routing::NodeIndex ledger = LedgerNode(*view, question.tenant);
  const bool ours =
      ledger != routing::kNoNode && view->node(ledger).lease.id == core.membership.self();
  const bool same =
      request.asker().revision() == view->revision() && core.meter.revision() == view->revision();
  if (!ours || !same || !question.members.contains(request.asker().node())) return;
  TenantAccount* account = core.meter.FindTenant(question.tenant);
  const std::optional<Load> limit = account != nullptr ? account->limit() : std::nullopt;
  if (!limit) return;  // Of a tenant without a quota there is no book.
  question.limit = *limit;
  question.asker = ReadStanding(request.asker());
  question.want = ReadLoad(request.want());
  question.surveyed = request.surveyed();
  for (const v1::Standing& other : request.others()) {
    question.others.push_back(ReadStanding(other));
  }
  const QuotaLedger::Answer answer = core.ledger.Decide(question);
  WriteLoad(answer.amount, reply->mutable_amount());
  switch (answer.verdict) {
    case QuotaLedger::Verdict::kSurveyFirst: reply->set_survey_first(true); [[fallthrough]];
    case QuotaLedger::Verdict::kGranted: reply->set_code(kItemOk); break;
    case QuotaLedger::Verdict::kSilent: reply->set_code(CodeOf(ErrorCode::kTransport)); break;
    case QuotaLedger::Verdict::kStale: break;
  }
}

bool ServeQuotaSurvey(Core& core, const v1::QuotaSurveyRequest& request, bool may_block,
                      v1::QuotaSurveyReply* reply, bool* valid) {
  (void)valid;  // Of an unknown tenant this node counts nothing.
  const bool victims = request.evict_size() > 0 || request.has_missing();
  if (victims && !may_block) return false;  // Looks at very many.
  TenantAccount* const account = core.meter.FindTenant(request.tenant());
  if (account != nullptr) ServeVictims(core, *account, request, reply);
  Standing standing = core.meter.Stand(account, true, core.runtime.NowMs());
  standing.node = core.membership.self_name();
  WriteStanding(standing, reply->mutable_standing());
  return true;
}

}  // namespace mooncake::node
