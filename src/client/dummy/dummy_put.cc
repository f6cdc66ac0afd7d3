#include "client/dummy/dummy_put.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "mooncake/observability.h"

namespace mooncake::client {

namespace {
constexpr uint64_t kStagingBytes = 32ULL << 20;
constexpr size_t kItemsMax = 4'096;
}  // namespace

// --- Staging --------------------------------------------------------------------------------

Staging::Lease& Staging::Lease::operator=(Lease&& other) noexcept {
  std::swap(region, other.region);
  std::swap(offset, other.offset);
  std::swap(bytes, other.bytes);
  std::swap(staging_, other.staging_);
  std::swap(own_, other.own_);
  return *this;
}

Staging::Lease::~Lease() {
  if (staging_ == nullptr) return;
  if (own_) {
    staging_->link_.UnregisterRegion(region);
    return;
  }
  base::MutexLock lock(staging_->mu_);
  staging_->space_->Free(offset);
}

Status Staging::OpenLocked() {
  if (memory_) return Ok();
  MC_TRY(MappedMemory memory, MappedMemory::MapShared(kStagingBytes, 0, true));
  MC_RETURN_IF_ERROR(link_.RegisterRegion(kStagingRegion | 1, memory.fd(), kStagingBytes));
  memory_ = std::make_unique<MappedMemory>(std::move(memory));
  space_ = std::make_unique<allocator::ExtentAllocator>(kStagingBytes);
  return Ok();
}

Result<std::optional<Staging::Lease>> Staging::TryLease(uint64_t size) {
  Lease lease;
  const MappedMemory* memory = nullptr;
  {
    base::MutexLock lock(mu_);
    MC_RETURN_IF_ERROR(OpenLocked());
    memory = memory_.get();  // It stays.
    const std::optional<uint64_t> offset = space_->Allocate(size);
    if (!offset) return std::optional<Lease>();
    lease.region = kStagingRegion | 1;
    lease.offset = *offset;
    lease.bytes = memory_->bytes().subspan(*offset, size);
    lease.staging_ = this;
  }
  memory->Prepare(lease.offset, size);
  return std::optional<Lease>(std::move(lease));
}

Result<Staging::Lease> Staging::LeaseAlone(uint64_t size) {
  MC_TRY(MappedMemory memory, MappedMemory::MapShared(size, 0, true));
  const uint64_t region = kStagingRegion | next_region_.fetch_add(1);
  MC_RETURN_IF_ERROR(link_.RegisterRegion(region, memory.fd(), size));
  memory.Prepare(0, size);
  Lease lease;
  lease.region = region;
  lease.bytes = memory.bytes();
  lease.staging_ = this;
  lease.own_ = std::make_unique<MappedMemory>(std::move(memory));
  return lease;
}

// --- DummyPut -------------------------------------------------------------------------------

DummyPut::DummyPut(Link& link, Staging& staging, const PutOptions& options, size_t values)
    : link_(link),
      staging_(staging),
      arena_(messages_, sizeof(messages_)),
      request_(*google::protobuf::Arena::CreateMessage<daemon_v1::PutRequest>(&arena_)) {
  request_.set_tenant(std::string(options.tenant));
  request_.set_api(std::string(ApiScope::OfThread().name));
  request_.set_if_absent(options.if_absent);
  if (options.replicate != nullptr) FillPolicy(*options.replicate);
  const size_t count = std::min(values, kItemsMax);
  for (auto* column :
       {request_.mutable_regions(), request_.mutable_offsets(), request_.mutable_sizes()}) {
    column->Reserve(static_cast<int>(count));
  }
  request_.mutable_piece_counts()->Reserve(static_cast<int>(count));
  request_.mutable_keys()->mutable_sizes()->Reserve(static_cast<int>(count));
  indices_.reserve(count);
}

void DummyPut::FillPolicy(const ReplicateConfig& replicate) {
  daemon_v1::ReplicatePolicy& policy = *request_.mutable_policy();
  policy.set_replica_num(replicate.replica_num);
  for (const std::string& name : replicate.preferred_segments) {
    policy.add_preferred_segments(name);
  }
  for (const std::string& name : replicate.preferred_storage_owners) {
    policy.add_preferred_storage_owners(name);
  }
  policy.set_prefer_local(replicate.prefer_local);
  policy.set_with_soft_pin(replicate.with_soft_pin);
  policy.set_prefer_alloc_in_same_node(replicate.prefer_alloc_in_same_node);
}

bool DummyPut::FindRegion(Piece& piece, const RegionOf& region_of) {
  const std::byte* const data = piece.bytes.data();
  const auto inside = [&](ConstBytes memory) {
    const std::less_equal<> before;
    return !memory.empty() && before(memory.data(), data) &&
           before(data + piece.bytes.size(), memory.data() + memory.size());
  };
  if (!inside(last_.memory)) {
    const std::optional<RegionRange> found = region_of(data, piece.bytes.size());
    if (!found) return false;
    last_ = *found;
  }
  piece.region = last_.region;
  piece.offset = last_.offset + static_cast<uint64_t>(data - last_.memory.data());
  return true;
}

Result<bool> DummyPut::Add(size_t index, const PutItem& item, const RegionOf& region_of) {
  if (indices_.size() >= kItemsMax || request_.keys().blob().size() >= kKeyBytesPerCallMax)
    return false;
  pieces_.clear();
  uint64_t unregistered = 0;
  for (ConstBytes part : item.parts) {
    if (part.empty()) continue;
    Piece& piece = pieces_.emplace_back(Piece{0, 0, part});
    if (!FindRegion(piece, region_of)) unregistered += part.size();
  }
  if (unregistered > 0) {
    MC_TRY(const bool staged, Stage(unregistered));
    if (!staged) return false;
  }
  AddKey(item.key, request_.mutable_keys());
  request_.add_piece_counts(static_cast<uint32_t>(pieces_.size()));
  for (const Piece& piece : pieces_) {
    uses_regions_ |= piece.region != 0;
    request_.add_regions(piece.region);
    request_.add_offsets(piece.offset);
    request_.add_sizes(piece.bytes.size());
  }
  indices_.push_back(index);
  return true;
}

Result<bool> DummyPut::Stage(uint64_t bytes) {
  std::string& inline_bytes = *request_.mutable_inline_bytes();
  if (bytes <= kInlineValueMax && inline_bytes.size() + bytes <= kInlineMessageMax) {
    for (Piece& piece : pieces_) {
      if (piece.region != 0) continue;
      piece.offset = inline_bytes.size();
      inline_bytes.append(TextOf(piece.bytes));
    }
    return true;
  }
  MC_TRY(std::optional<Staging::Lease> lease, staging_.TryLease(bytes));
  if (!lease && !indices_.empty()) return false;
  if (!lease) {
    MC_TRY(lease, staging_.LeaseAlone(bytes));
  }
  uint64_t used = 0;
  for (Piece& piece : pieces_) {
    if (piece.region != 0) continue;
    std::memcpy(lease->bytes.data() + used, piece.bytes.data(), piece.bytes.size());
    piece.region = lease->region;
    piece.offset = lease->offset + used;
    used += piece.bytes.size();
  }
  leases_.push_back(*std::move(lease));
  return true;
}

void DummyPut::Send(std::vector<Status>* statuses) {
  if (indices_.empty()) return;
  auto& reply = *google::protobuf::Arena::CreateMessage<daemon_v1::CodesReply>(&arena_);
  Status status;
  {
    // Ends before the caller may touch its memory again.
    const Link::Mark mark(link_);
    if (!mark && uses_regions_) status = BackPressure("too many calls at once");
    mark.Fill(request_.mutable_mark());
    if (status.ok()) status = link_.Put(request_, &reply);
  }
  if (status.ok() && reply.codes_size() != static_cast<int>(indices_.size())) {
    status = TransportError("a malformed reply of the daemon");
  }
  int failed = 0;
  for (size_t k = 0; k < indices_.size(); ++k) {
    Status& out = (*statuses)[indices_[k]];
    if (!status.ok()) {
      out = status.error();
    } else if (const int32_t code = reply.codes(static_cast<int>(k)); code != 0) {
      out = ItemError(code, failed < reply.errors_size() ? reply.errors(failed) : "");
      ++failed;
    }
  }
}

}  // namespace mooncake::client
