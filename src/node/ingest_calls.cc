#include <algorithm>
#include <utility>

#include "node/authority.h"
#include "node/data_calls.h"
#include "node/evictor.h"
#include "node/quota.h"

namespace mooncake::node {

namespace {

constexpr ItemCode kUndecided = 1;

// What put and write share: columns in, an extent reserved per item, the payload straight into
// the extents, checksums from the trailer.
class IngestCall : public ServerCall {
 public:
  explicit IngestCall(Core& core) : core_(core) {}

  ~IngestCall() override {
    for (Item& item : items_) {
      if (item.pin) core_.extents.Retire(*item.pin);
    }
    if (owns_sequence_) core_.dedup.Abandon(origin_, sequence_);
  }

  bool Prepare(bool may_block) override {
    if (verdict_ != DedupTable::Verdict::kNew) return true;
    for (Item& item : items_) {
      if (item.code != kUndecided) continue;
      item.code = Gate(item);
      if (item.code != kUndecided) continue;
      if (core_.membership.state() != NodeState::kActive) {  // Draining: no new copies.
        item.code = CodeOf(ErrorCode::kNoSpace);
        continue;
      }
      // Before anything is evicted for it.
      if (!item.admitted) {
        const ItemCode admitted = AdmitItem(item, may_block);
        if (admission_.would_block) return false;
        if (admitted != kItemOk) {
          item.code = admitted;
          continue;
        }
        item.admitted = true;
      }
      bool would_block = false;
      ReserveRequest reserve{item.ref, item.size, soft_pin_, writer_, core_.runtime.NowMs(),
                             segment_};
      reserve.writer_until_ms = deadline_ms_;
      // Above the high watermark the evictor would make up for it.
      if (no_evict_) reserve.fill_percent_max = core_.options.high_watermark_percent;
      item.pin = no_evict_ ? core_.extents.Reserve(reserve)
                           : core_.evictor.Reserve(reserve, may_block, deadline_ms_, &would_block);
      if (would_block) return false;
      item.code = item.pin ? kItemOk : CodeOf(ErrorCode::kNoSpace);
    }
    return true;
  }

  std::span<const MutableBytes> PayloadTargets() override {
    targets_.clear();
    for (const Item& item : items_) {
      targets_.push_back(item.pin ? item.pin->data()
                                  : MutableBytes{static_cast<std::byte*>(nullptr), item.size});
    }
    targets_.emplace_back(trailer_);
    return targets_;
  }

  bool Run(bool may_block, Reply& reply) override {
    (void)may_block;
    if (verdict_ == DedupTable::Verdict::kDone) {
      reply.message = remembered_;
      return true;
    }
    // Still running: an empty reply, which the asker takes as "the same again".
    if (verdict_ == DedupTable::Verdict::kRunning) return true;
    // Its caller has been told that it failed; it must not come over a later put.
    const bool late = deadline_ms_ != 0 && core_.runtime.NowMs() >= deadline_ms_;
    for (size_t i = 0; i < items_.size(); ++i) {
      if (late) items_[i].code = kItemRetryLater;
      if (items_[i].pin) items_[i].pin->SetChecksum(LoadChecksum(&trailer_[i * kChecksumBytes]));
    }
    reply.message = Finish();
    core_.dedup.Finish(origin_, sequence_, reply.message);
    owns_sequence_ = false;
    return true;
  }

 protected:
  struct Item {
    KeyRef ref;
    uint64_t size = 0;
    ItemCode code = kUndecided;
    ExtentPin pin;  // Ours to retire unless Finish passes it on.
    Charge charge;  // Where the tenant has a quota.
    bool admitted = false;
  };

  // kUndecided: reserve an extent for it.
  virtual ItemCode Gate(const Item& item) = 0;
  // Whether its tenant may grow by it; asked once of each item that got past the gate.
  virtual bool Charged() const { return false; }
  // Uses the filled extents; returns the reply.
  virtual std::string Finish() = 0;

  template <typename Message>
  bool Read(const Message& message, const IncomingRequest& request) {
    const auto scope = core_.scopes.Intern(ReadScope(message.scope()));
    std::vector<std::string_view> keys;
    if (!scope || !ReadKeys(message.keys(), &keys)) return false;
    if (static_cast<size_t>(message.value_sizes_size()) != keys.size()) return false;
    uint64_t rest = request.payload_size;
    items_.resize(keys.size());
    for (size_t i = 0; i < keys.size(); ++i) {
      items_[i].ref = MakeKeyRef(*scope, keys[i]);
      items_[i].size = message.value_sizes(static_cast<int>(i));
      if (items_[i].size > rest) return false;
      rest -= items_[i].size;
    }
    trailer_.resize(keys.size() * kChecksumBytes);
    if (rest != trailer_.size()) return false;
    return ReadOrigin(message.origin()) && (deadline_ms_ = request.deadline_ms, true);
  }

  Core& core_;
  std::vector<Item> items_;
  bool soft_pin_ = false;
  bool no_evict_ = false;
  std::string segment_;

 private:
  ItemCode AdmitItem(Item& item, bool may_block) {
    admission_.would_block = false;
    if (!Charged() || !HasQuota(core_, item.ref.scope)) return kItemOk;
    if (!std::exchange(charging_, true)) {
      admission_.deadline_ms = deadline_ms_ != 0 ? deadline_ms_ : UINT64_MAX;
      for (const Item& each : items_) {
        admission_.ahead = admission_.ahead.Plus(LoadOf(each.size, 1));
      }
    }
    admission_.may_block = may_block;
    return Admit(core_, {item.ref, item.size, 1, false}, admission_, &item.charge);
  }

  bool ReadOrigin(const v1::Origin& origin) {
    if (!core_.membership.IsAddressee(origin.addressee())) return false;
    const auto writer = core_.names.IndexOf(origin.node());
    if (!writer) return false;
    writer_ = *writer;
    origin_ = origin.node();
    sequence_ = origin.sequence();
    verdict_ = core_.dedup.Begin(origin_, sequence_, &remembered_);
    owns_sequence_ = verdict_ == DedupTable::Verdict::kNew;
    return true;
  }

  NameIndex writer_ = 0;
  std::string origin_;
  uint64_t sequence_ = 0;
  uint64_t deadline_ms_ = 0;
  DedupTable::Verdict verdict_ = DedupTable::Verdict::kNew;
  bool owns_sequence_ = false;
  Admission admission_;
  bool charging_ = false;
  std::string remembered_;
  std::vector<std::byte> trailer_;
  std::vector<MutableBytes> targets_;
};

class PutCall : public IngestCall {
 public:
  using IngestCall::IngestCall;

  bool Accept(const IncomingRequest& request) {
    if (!message_.ParseFromArray(request.message.data(),
                                 static_cast<int>(request.message.size()))) {
      return false;
    }
    soft_pin_ = message_.soft_pin();
    return Read(message_, request);
  }

 private:
  ItemCode Gate(const Item& item) override {
    const ItemCode code = core_.routes.Lookup(item.ref, nullptr, nullptr);
    if (code == CodeOf(ErrorCode::kNotFound)) return kUndecided;
    if (code != kItemOk) return code;
    return message_.if_absent() ? kItemOk : kUndecided;
  }

  bool Charged() const override { return true; }

  std::string Finish() override {
    v1::PutReply reply;
    reply.mutable_codes()->Reserve(static_cast<int>(items_.size()));
    for (Item& item : items_) {
      if (item.pin && item.code == kItemOk) {
        Publication publication;
        publication.size = item.size;
        publication.checksum = item.pin->checksum();
        publication.has_checksum = true;
        publication.soft_pin = soft_pin_;
        publication.local = item.pin;
        publication.if_absent = message_.if_absent();
        publication.revision = message_.origin().revision();
        Version version = 0;
        item.code = PublishRoute(core_, item.ref, std::move(publication), &version, &item.charge);
        if (item.code == kItemOk) item.pin = {};
      }
      reply.add_codes(item.code);
    }
    reply.set_revision(core_.view()->revision());
    reply.set_room(OwnRoom(core_, core_.options.low_watermark_percent));
    return reply.SerializeAsString();
  }

  v1::PutRequest message_;
};

class WriteCall : public IngestCall {
 public:
  using IngestCall::IngestCall;

  bool Accept(const IncomingRequest& request) {
    if (!message_.ParseFromArray(request.message.data(),
                                 static_cast<int>(request.message.size()))) {
      return false;
    }
    soft_pin_ = message_.soft_pin();
    segment_ = message_.segment();
    no_evict_ = message_.no_evict();
    meant_for_us_ = message_.owner() == core_.membership.self_name();
    return Read(message_, request);
  }

 private:
  ItemCode Gate(const Item& item) override {
    (void)item;
    return meant_for_us_ ? kUndecided : CodeOf(ErrorCode::kStaleEpoch);
  }

  std::string Finish() override {
    v1::WriteReply reply;
    for (Item& item : items_) {
      if (item.pin && item.code == kItemOk) {
        WritePlace(item.pin->place(), core_.names, reply.add_extents());
        item.pin = {};  // Reserved from here on until published or reaped.
      }
      reply.add_codes(item.code);
    }
    reply.set_room(OwnRoom(core_, core_.options.low_watermark_percent));
    return reply.SerializeAsString();
  }

  v1::WriteRequest message_;
  bool meant_for_us_ = false;
};

template <typename CallType>
std::unique_ptr<ServerCall> AcceptAs(Core& core, const IncomingRequest& request) {
  auto call = std::make_unique<CallType>(core);
  if (!call->Accept(request)) return nullptr;
  return call;
}

}  // namespace

std::unique_ptr<ServerCall> AcceptPut(Core& core, const IncomingRequest& request) {
  return AcceptAs<PutCall>(core, request);
}

std::unique_ptr<ServerCall> AcceptWrite(Core& core, const IncomingRequest& request) {
  return AcceptAs<WriteCall>(core, request);
}

}  // namespace mooncake::node
