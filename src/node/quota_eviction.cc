#include "node/quota_eviction.h"

#include <algorithm>
#include <optional>
#include <tuple>

#include "node/authority.h"
#include "node/wire.h"

namespace mooncake::node {

namespace {

constexpr size_t kAgesAtOnce = 64;
constexpr int kLooksMax = 256;  // With that many each: most of them are read or spared, or gone.

Load ReadLoad(const v1::Load& load) { return {load.bytes(), load.objects()}; }

// Soft-pinned values go after all others, those that are read after those that are not.
auto OrderOf(const Victim& victim) {
  return std::tuple(victim.age.soft_pin, victim.in_use, victim.age.published_ms, victim.age.version,
                    victim.age.hash);
}

// Takes victims in their order until they make enough room.
class Picker {
 public:
  Picker(const Load& missing, size_t count_max) : missing_(missing), count_max_(count_max) {}
  bool done() const { return missing_.empty() || full(); }
  bool full() const { return picked_.size() >= count_max_; }
  bool enough() const { return missing_.empty(); }
  void Offer(const Victim& victim) {
    if (done() || victim.load.AtMost(missing_).empty()) return;  // It would make no room.
    missing_ = missing_.Minus(victim.load);
    picked_.push_back(victim);
  }
  std::vector<Victim> Take() { return std::move(picked_); }

 private:
  Load missing_;
  const size_t count_max_;
  std::vector<Victim> picked_;
};

}  // namespace

VictimList OldestHere(Core& core, TenantAccount& account, const Load& missing, uint64_t spared) {
  Picker picker(missing, kVictimsMax);
  std::vector<Victim> in_use;  // Of those that are soft-pinned like the last one.
  std::optional<Age> last;
  const auto offer_those_in_use = [&] {
    for (const Victim& victim : in_use) picker.Offer(victim);
    in_use.clear();
  };
  bool all = false;
  for (int look = 0; look < kLooksMax && !picker.done() && !all; ++look) {
    const std::vector<Age> ages = account.ages().After(last, kAgesAtOnce);
    all = ages.size() < kAgesAtOnce;
    for (const Age& age : ages) {
      if (last && age.soft_pin != last->soft_pin) offer_those_in_use();
      last = age;
      if (age.hash == spared) continue;
      const auto there = core.routes.FindAged(account, age);
      if (!there) continue;  // It went a moment ago.
      const Victim victim{age, there->in_use, there->load};
      victim.in_use ? in_use.push_back(victim) : picker.Offer(victim);
    }
  }
  if (all) offer_those_in_use();
  const bool enough = picker.enough();
  return {picker.Take(), !enough && (picker.full() || !all)};
}

std::vector<Victim> ChooseVictims(std::span<const VictimList> lists, Load missing) {
  std::vector<Victim> victims;
  std::optional<Victim> last;  // After it there may be others between those that are known.
  bool more = false;
  bool unknown = false;
  for (const VictimList& list : lists) {
    victims.insert(victims.end(), list.victims.begin(), list.victims.end());
    if (!list.more) continue;
    more = true;
    if (list.victims.empty()) {
      unknown = true;
    } else if (!last || OrderOf(list.victims.back()) < OrderOf(*last)) {
      last = list.victims.back();
    }
  }
  if (unknown) return {};
  std::sort(victims.begin(), victims.end(),
            [](const Victim& a, const Victim& b) { return OrderOf(a) < OrderOf(b); });
  Picker picker(missing, victims.size() + 1);
  for (const Victim& victim : victims) {
    if (last && OrderOf(*last) < OrderOf(victim)) break;
    picker.Offer(victim);
  }
  if (!picker.enough() && !more) return {};
  return picker.Take();
}

void WriteVictim(const Victim& victim, v1::Aged* out) {
  out->set_hash(victim.age.hash);
  out->set_version(victim.age.version);
  out->set_published_ms(victim.age.published_ms);
  out->set_soft_pin(victim.age.soft_pin);
  out->set_in_use(victim.in_use);
  out->mutable_load()->set_bytes(victim.load.bytes);
  out->mutable_load()->set_objects(victim.load.objects);
}

VictimList ReadVictims(const v1::QuotaSurveyReply& reply, size_t from) {
  VictimList list;
  list.more = reply.more();
  for (const v1::Aged& aged : reply.oldest()) {
    if (list.victims.size() >= kVictimsMax) break;
    const Age age{aged.soft_pin(), aged.published_ms(), aged.version(), aged.hash()};
    list.victims.push_back({age, aged.in_use(), ReadLoad(aged.load()), from});
  }
  return list;
}

void ServeVictims(Core& core, TenantAccount& account, const v1::QuotaSurveyRequest& request,
                  v1::QuotaSurveyReply* reply) {
  if (!account.evicts()) return;
  size_t left = kVictimsMax;
  for (const v1::Aged& aged : request.evict()) {
    if (left-- == 0) break;
    (void)EvictAged(core, account, {.version = aged.version(), .hash = aged.hash()});
  }
  const Load missing = ReadLoad(request.missing());
  if (missing.empty()) return;
  const VictimList list = OldestHere(core, account, missing, request.spared());
  for (const Victim& victim : list.victims) WriteVictim(victim, reply->add_oldest());
  reply->set_more(list.more);
}

}  // namespace mooncake::node
