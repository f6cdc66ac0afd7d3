#include <algorithm>

#include "node/data_calls.h"

namespace mooncake::node {

namespace {

bool Parse(google::protobuf::MessageLite& message, std::string_view text) {
  return message.ParseFromArray(text.data(), static_cast<int>(text.size()));
}

class GetCall : public ServerCall {
 public:
  explicit GetCall(Core& core) : core_(core) {}

  bool Accept(const IncomingRequest& request) {
    if (request.payload_size != 0 || !Parse(message_, request.message)) return false;
    if (!core_.membership.IsAddressee(message_.origin().addressee())) return false;
    const auto scope = core_.scopes.Look(ReadScope(message_.scope()));
    if (!scope || !ReadKeys(message_.keys(), &keys_)) return false;
    scope_ = *scope;
    if (message_.has_storage()) {
      asker_ = core_.names.Find(message_.origin().node()).value_or(kSelf);
    }
    const bool ranged = message_.offsets_size() != 0;
    const int known = message_.known_versions_size();
    if (known != 0 && known != static_cast<int>(keys_.size())) return false;
    return message_.limits_size() == static_cast<int>(keys_.size()) &&
           (!ranged || message_.offsets_size() == static_cast<int>(keys_.size()));
  }

  bool Prepare(bool) override { return true; }
  std::span<const MutableBytes> PayloadTargets() override { return {}; }

  bool Run(bool, Reply& reply) override {
    v1::GetReply out;
    const int count = static_cast<int>(keys_.size());
    out.mutable_codes()->Reserve(count);
    out.mutable_sizes()->Reserve(count);
    out.mutable_checksums()->Reserve(count);
    pins_.reserve(keys_.size());
    reply.payload.reserve(keys_.size());
    for (int i = 0; i < count; ++i) ServeItem(i, out, reply);
    out.set_revision(core_.view()->revision());
    reply.message = out.SerializeAsString();
    return true;
  }

 private:
  void ServeItem(int i, v1::GetReply& out, Reply& reply) {
    const KeyRef ref = MakeKeyRef(scope_, keys_[i]);
    if (message_.known_versions_size() != 0 && IsCurrent(i, ref, out)) return;
    ExtentPin pin;
    ItemCode code = core_.routes.Lookup(ref, nullptr, &pin, asker_);
    uint64_t size = 0;
    uint64_t checksum = 0;
    if (code == kItemOk && pin) {
      size = pin->size();
      checksum = pin->checksum();
      code = Serve(i, pin, reply);
    } else if (code == kItemOk) {
      Route route;
      code = core_.routes.Lookup(ref, &route, nullptr);
      if (code == kItemOk) {
        size = route.size;
        checksum = route.checksum;
        out.add_routed(static_cast<uint32_t>(i));
        WriteRoute({}, route, core_.names, out.add_routes());
      }
    }
    out.add_codes(core_.routes.Explain(ref, code));
    out.add_sizes(size);
    out.add_checksums(checksum);
  }

  // Adds the item's version to the reply; true: the asker has it, and its whole answer is added.
  bool IsCurrent(int i, const KeyRef& ref, v1::GetReply& out) {
    Route route;
    ExtentPin pin;
    if (core_.routes.Lookup(ref, &route, &pin) != kItemOk) route.version = 0;
    out.add_versions(route.version);
    if (route.version == 0 || route.version != message_.known_versions(i)) return false;
    if (pin) pin->Touch();
    out.add_codes(kItemUnchanged);
    out.add_sizes(route.size);
    out.add_checksums(route.checksum);
    return true;
  }

  ItemCode Serve(int i, ExtentPin& pin, Reply& reply) {
    const uint64_t limit = message_.limits(i);
    ConstBytes bytes = pin->data();
    if (message_.offsets_size() != 0) {
      const uint64_t offset = message_.offsets(i);
      if (offset > bytes.size() || limit > bytes.size() - offset) {
        return CodeOf(ErrorCode::kTooSmall);
      }
      bytes = bytes.subspan(offset, limit);
    } else if (bytes.size() > limit) {
      return CodeOf(ErrorCode::kTooSmall);
    }
    pin->Touch();
    reply.payload.push_back(bytes);
    pins_.push_back(std::move(pin));
    return kItemOk;
  }

  Core& core_;
  v1::GetRequest message_;
  ScopeTable::Entry scope_;
  NameIndex asker_ = kSelf;  // kSelf: it has no storage.
  std::vector<std::string_view> keys_;
  std::vector<ExtentPin> pins_;
};

class ReadCall : public ServerCall {
 public:
  explicit ReadCall(Core& core) : core_(core) {}

  bool Accept(const IncomingRequest& request) {
    if (request.payload_size != 0 || !Parse(message_, request.message)) return false;
    if (!core_.membership.IsAddressee(message_.origin().addressee())) return false;
    const int count = message_.extents_size();
    return count <= static_cast<int>(kItemsPerMessageMax) && message_.key_hashes_size() == count &&
           message_.offsets_size() == count && message_.sizes_size() == count;
  }

  bool Prepare(bool) override { return true; }
  std::span<const MutableBytes> PayloadTargets() override { return {}; }

  bool Run(bool, Reply& reply) override {
    v1::ReadReply out;
    const bool for_us = message_.owner() == core_.membership.self_name();
    for (int i = 0; i < message_.extents_size(); ++i) {
      out.add_codes(for_us ? ServeItem(i, reply) : CodeOf(ErrorCode::kStaleEpoch));
    }
    reply.message = out.SerializeAsString();
    return true;
  }

 private:
  ItemCode ServeItem(int i, Reply& reply) {
    const v1::Replica& replica = message_.extents(i);
    ExtentPin pin = core_.extents.Find(replica.segment(), replica.offset(), replica.generation());
    if (!pin || pin->ref().hash != message_.key_hashes(i)) return CodeOf(ErrorCode::kNotFound);
    const uint64_t offset = message_.offsets(i);
    const uint64_t size = message_.sizes(i);
    if (offset > pin->size() || size > pin->size() - offset) return CodeOf(ErrorCode::kTooSmall);
    pin->Touch();
    reply.payload.push_back(pin->data().subspan(offset, size));
    pins_.push_back(std::move(pin));
    return kItemOk;
  }

  Core& core_;
  v1::ReadRequest message_;
  std::vector<ExtentPin> pins_;
};

}  // namespace

std::unique_ptr<ServerCall> AcceptGet(Core& core, const IncomingRequest& request) {
  auto call = std::make_unique<GetCall>(core);
  if (!call->Accept(request)) return nullptr;
  return call;
}

std::unique_ptr<ServerCall> AcceptRead(Core& core, const IncomingRequest& request) {
  auto call = std::make_unique<ReadCall>(core);
  if (!call->Accept(request)) return nullptr;
  return call;
}

}  // namespace mooncake::node
