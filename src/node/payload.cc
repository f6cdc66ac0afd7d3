#include "node/payload.h"

#include <algorithm>
#include <cstring>

#include "node/wire.h"

namespace mooncake::node {

namespace {
// Small enough to stay in the first cache levels between the copy and the checksum.
constexpr size_t kChunk = 16 * 1024;
}  // namespace

void GatherPlan::Add(std::span<const ConstBytes> parts) {
  const auto value = static_cast<uint32_t>(values_.size());
  for (ConstBytes part : parts) {
    if (part.empty()) continue;
    pieces_.push_back(part);
    value_of_piece_.push_back(value);
  }
  values_.push_back({TotalSize(parts), 0});
}

const std::vector<ConstBytes>& GatherPlan::Seal() {
  trailer_.resize(values_.size() * kChecksumBytes);
  Restart();
  pieces_.emplace_back(trailer_);
  return pieces_;
}

void GatherPlan::Restart() {
  stream_.Reset();
  const uint64_t empty = base::Checksum(ConstBytes());
  for (size_t i = 0; i < values_.size(); ++i) {
    values_[i].seen = 0;
    StoreChecksum(empty, &trailer_[i * kChecksumBytes]);
  }
}

uint64_t GatherPlan::ChecksumOf(size_t value) const {
  return LoadChecksum(&trailer_[value * kChecksumBytes]);
}

void GatherPlan::OnSend(size_t piece, ConstBytes chunk) {
  if (piece >= value_of_piece_.size()) return;  // The trailer itself.
  const uint32_t index = value_of_piece_[piece];
  Value& value = values_[index];
  if (value.seen == 0 && chunk.size() == value.size) {
    value.seen = value.size;
    StoreChecksum(base::Checksum(chunk), &trailer_[index * kChecksumBytes]);
    return;
  }
  if (value.seen == 0) stream_.Reset();
  stream_.Update(chunk);
  value.seen += chunk.size();
  if (value.seen == value.size) {
    StoreChecksum(stream_.Digest(), &trailer_[index * kChecksumBytes]);
  }
}

void ScatterPlan::Add(std::span<const MutableBytes> targets, uint64_t size, bool check,
                      uint64_t checksum) {
  const auto index = static_cast<uint32_t>(values_.size());
  uint64_t rest = size;
  for (MutableBytes target : targets) {
    const uint64_t take = std::min<uint64_t>(rest, target.size());
    if (take == 0) continue;
    pieces_.push_back(target.first(take));
    value_of_piece_.push_back(index);
    rest -= take;
  }
  const bool right = size == 0 && (!check || checksum == base::Checksum(ConstBytes()));
  values_.push_back({size, 0, checksum, check, right});
}

void ScatterPlan::OnReceive(size_t piece, ConstBytes chunk) {
  Value& value = values_[value_of_piece_[piece]];
  const bool first = value.seen == 0;
  value.seen += chunk.size();
  const bool last = value.seen == value.size;
  if (!value.check) {
    value.right = last;
    return;
  }
  if (first && last) {
    value.right = base::Checksum(chunk) == value.checksum;
    return;
  }
  if (first) stream_.Reset();
  stream_.Update(chunk);
  if (last) value.right = stream_.Digest() == value.checksum;
}

void ScatterPlan::Clear() {
  pieces_.clear();
  value_of_piece_.clear();
  values_.clear();
}

uint64_t CopyOut(ConstBytes source, std::span<const MutableBytes> targets) {
  if (!targets.empty() && targets[0].size() >= source.size()) {
    return base::CopyWithChecksum(targets[0], source);
  }
  base::ChecksumStream stream;
  for (MutableBytes target : targets) {
    while (!target.empty() && !source.empty()) {
      const size_t take = std::min({kChunk, target.size(), source.size()});
      std::memcpy(target.data(), source.data(), take);
      stream.Update(target.first(take));
      target = target.subspan(take);
      source = source.subspan(take);
    }
  }
  return stream.Digest();
}

uint64_t CopyIn(std::span<const ConstBytes> parts, MutableBytes target) {
  if (parts.size() == 1) return base::CopyWithChecksum(target, parts[0]);
  base::ChecksumStream stream;
  for (ConstBytes part : parts) {
    while (!part.empty()) {
      const size_t take = std::min(kChunk, part.size());
      std::memcpy(target.data(), part.data(), take);
      stream.Update(target.first(take));
      target = target.subspan(take);
      part = part.subspan(take);
    }
  }
  return stream.Digest();
}

}  // namespace mooncake::node
