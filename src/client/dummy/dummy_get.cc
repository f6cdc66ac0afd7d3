#include "client/dummy/dummy_get.h"

#include <fmt/format.h>
#include <google/protobuf/arena.h>

#include <algorithm>

#include "client/dummy/side_channel.h"
#include "mooncake/observability.h"
#include "node/payload.h"

namespace mooncake::client {

namespace {

constexpr size_t kItemsPerCallMax = 4'096;
constexpr size_t kUnknownPerCallMax = 128;  // Items whose size only the daemon knows.
constexpr uint64_t kBytesPerCallMax = 256ULL << 20;
constexpr int kRoundsMax = 3;
// A call that copies while it asks wakes another processor, which takes as long as copying this.
constexpr uint64_t kAheadBytesMin = 512 << 10;

bool Whole(const daemon_v1::AcquireReply& reply, size_t items) {
  const int count = static_cast<int>(items);
  return reply.codes_size() == count && reply.sizes_size() == count &&
         reply.areas_size() == count && reply.offsets_size() == count &&
         reply.checksums_size() == count && reply.checked_size() == count;
}

bool Inside(ConstBytes memory, uint64_t offset, uint64_t size) {
  return offset <= memory.size() && size <= memory.size() - offset;
}

bool WorthCopyingAhead(std::span<const PlaceHints::Hint> hints) {
  uint64_t bytes = 0;
  for (const PlaceHints::Hint& hint : hints) bytes += hint.size;
  return bytes >= kAheadBytesMin;
}

// Whether a place in the area may still be good at the next read.
bool Lasting(uint64_t area) { return area != 0 && area < kScratchAreas; }

}  // namespace

DummyGet::DummyGet(Link& link, Runtime& runtime, PlaceHints& hints, const GetWanted& wanted,
                   std::string_view tenant)
    : link_(link), runtime_(runtime), hints_(hints), wanted_(wanted), tenant_(tenant) {
  results_.reserve(wanted.keys.size());
  for (size_t i = 0; i < wanted.keys.size(); ++i) results_.emplace_back(uint64_t{0});
}

std::vector<Result<uint64_t>> DummyGet::Run() {
  std::vector<size_t> pending;
  pending.reserve(wanted_.keys.size());
  for (size_t i = 0; i < wanted_.keys.size(); ++i) {
    if (Status status = CheckKey(wanted_.keys[i]); !status) {
      results_[i] = std::move(status).error();
    } else {
      pending.push_back(i);
    }
  }
  for (int round = 0; round < kRoundsMax && !pending.empty(); ++round) {
    std::vector<size_t> again;
    for (size_t next = 0; next < pending.size();) {
      const size_t end = round == 0 ? EndOfPart(pending, next) : next + 1;
      Ask(std::span(pending).subspan(next, end - next), &again);
      next = end;
    }
    pending.swap(again);
  }
  return std::move(results_);
}

size_t DummyGet::EndOfPart(const std::vector<size_t>& pending, size_t begin) const {
  uint64_t bytes = 0;
  uint64_t key_bytes = 0;
  size_t unknown = 0;
  size_t end = begin;
  for (; end < pending.size() && end - begin < kItemsPerCallMax; ++end) {
    key_bytes += wanted_.keys[pending[end]].size();
    if (key_bytes > kKeyBytesPerCallMax) break;
    const uint64_t limit = wanted_.limits[pending[end]];
    if (limit == UINT64_MAX) {
      if (++unknown > kUnknownPerCallMax) break;
      continue;
    }
    bytes += limit;
    if (bytes > kBytesPerCallMax && end > begin) break;
  }
  return end;
}

void DummyGet::Fill(std::span<const size_t> items, daemon_v1::AcquireRequest* request) const {
  request->set_tenant(std::string(tenant_));
  request->set_api(std::string(ApiScope::OfThread().name));
  request->set_allow_inline(wanted_.allow_inline);
  request->mutable_limits()->Reserve(static_cast<int>(items.size()));
  for (size_t i : items) {
    request->add_limits(wanted_.limits[i]);
    if (!wanted_.offsets.empty()) request->add_offsets(wanted_.offsets[i]);
  }
  AddKeys(wanted_.keys, items, request->mutable_keys());
}

void DummyGet::Ask(std::span<const size_t> items, std::vector<size_t>* again) {
  google::protobuf::Arena arena(messages_, sizeof(messages_));
  auto& request = *google::protobuf::Arena::CreateMessage<daemon_v1::AcquireRequest>(&arena);
  auto& reply = *google::protobuf::Arena::CreateMessage<daemon_v1::AcquireReply>(&arena);
  Fill(items, &request);
  const Link::Mark mark(link_);  // The values stay where they are while it lives.
  if (!mark) {
    for (size_t i : items) results_[i] = BackPressure("too many calls at once");
    return;
  }
  mark.Fill(request.mutable_mark());
  start_ms_ = runtime_.NowMs();
  const uint64_t deadline_ms = link_.Deadline();
  ahead_.clear();
  hint_keys_.clear();
  Link::Started started;
  if (const auto hints = FindHints(items); WorthCopyingAhead(hints)) {
    started = link_.Start(CallType::kAcquire, request, deadline_ms);
    if (started) CopyAhead(items, hints, started->session);
  }
  const Status status = link_.Acquire(request, &reply, deadline_ms, std::move(started));
  if (!status.ok() || !Whole(reply, items.size())) {
    for (size_t i : items) {
      results_[i] =
          status.ok() ? TransportError("a malformed reply of the daemon") : status.error();
    }
    return;
  }
  Settle(items, reply, request.session().high(), again);
}

void DummyGet::Settle(std::span<const size_t> items, const daemon_v1::AcquireReply& reply,
                      uint64_t session, std::vector<size_t>* again) {
  int failed = 0;
  for (size_t k = 0; k < items.size(); ++k) {
    const size_t i = items[k];
    if (const int32_t code = reply.codes(static_cast<int>(k)); code != 0) {
      results_[i] = ItemError(code, failed < reply.errors_size() ? reply.errors(failed) : "");
      ++failed;
      if (results_[i].code() == ErrorCode::kBackPressure) again->push_back(i);
      continue;
    }
    const auto column = static_cast<int>(k);
    if (!ahead_.empty() && ahead_[k].copied && reply.checked(column) &&
        ahead_[k].size == reply.sizes(column) && ahead_[k].checksum == reply.checksums(column)) {
      results_[i] = ahead_[k].size;
      continue;
    }
    results_[i] = Copy(i, reply, column, session);
    const ErrorCode code = results_[i].code();
    if (code == ErrorCode::kChecksum || code == ErrorCode::kStaleEpoch) again->push_back(i);
  }
  NotePlaces(items, reply, session);
}

Result<uint64_t> DummyGet::Copy(size_t i, const daemon_v1::AcquireReply& reply, int k,
                                uint64_t session) {
  const uint64_t size = reply.sizes(k);
  const uint64_t offset = reply.offsets(k);
  std::shared_ptr<const MappedMemory> area;
  ConstBytes memory = BytesOf(reply.inline_bytes());
  if (reply.areas(k) != 0) {
    MC_TRY(area, link_.Area(reply.areas(k), session));
    memory = area->bytes();
  }
  if (!Inside(memory, offset, size)) {
    return TransportError("the daemon named bytes outside of its memory");
  }
  const auto targets = wanted_.targets(i, size);
  if (!targets || TotalSize(*targets) < size) {
    return TooSmall(fmt::format("{}: needs {} bytes", wanted_.keys[i].substr(0, 128), size));
  }
  const uint64_t checksum = node::CopyOut(memory.subspan(offset, size), *targets);
  if (reply.checked(k)) {
    if (checksum == reply.checksums(k)) return size;
    return ChecksumMismatch(std::string(wanted_.keys[i].substr(0, 128)));
  }
  // Nothing but the lease says that these were still the right bytes.
  const uint64_t held_ms = runtime_.NowMs() - start_ms_;
  if (held_ms < link_.lease_ms() || reply.areas(k) == 0) return size;
  return ChecksumMismatch("the lease of the bytes ended while they were copied");
}

// Only whole values, into memory that is there already, no two of them into the same: one that
// turns out missing must not have spoilt another.
bool DummyGet::MayCopyAhead(std::span<const size_t> items) const {
  if (!wanted_.offsets.empty()) return false;
  uint64_t bytes = 0;
  for (size_t i : items) {
    if (wanted_.limits[i] == UINT64_MAX) return false;
    bytes += wanted_.limits[i];
  }
  if (bytes < kAheadBytesMin) return false;
  std::vector<ConstBytes> all;
  all.reserve(items.size());
  bool sorted = true;
  for (size_t i : items) {
    const auto targets = wanted_.targets(i, 0);
    if (!targets) return false;
    for (MutableBytes target : *targets) {
      sorted = sorted && (all.empty() || all.back().data() <= target.data());
      all.emplace_back(target);
    }
  }
  if (!sorted) {
    std::sort(all.begin(), all.end(),
              [](ConstBytes a, ConstBytes b) { return std::less<>()(a.data(), b.data()); });
  }
  for (size_t k = 1; k < all.size(); ++k) {
    if (all[k - 1].data() + all[k - 1].size() > all[k].data()) return false;
  }
  return true;
}

std::vector<PlaceHints::Hint> DummyGet::FindHints(std::span<const size_t> items) {
  if (!MayCopyAhead(items)) return {};
  hint_keys_.reserve(items.size());
  for (size_t i : items) hint_keys_.push_back(PlaceHints::KeyOf(tenant_, wanted_.keys[i]));
  return hints_.Find(hint_keys_);
}

void DummyGet::CopyAhead(std::span<const size_t> items, std::span<const PlaceHints::Hint> hints,
                         uint64_t session) {
  ahead_.resize(items.size());
  uint64_t area_id = 0;
  std::shared_ptr<const MappedMemory> area;
  for (size_t k = 0; k < items.size(); ++k) {
    const PlaceHints::Hint& hint = hints[k];
    if (hint.key == 0 || hint.session != session || hint.size > wanted_.limits[items[k]]) continue;
    if (hint.area != area_id) area = link_.KnownArea(hint.area, session);
    area_id = hint.area;
    // The daemon named the place with an answer that was not copied by.
    if (!area || !Inside(area->bytes(), hint.offset, hint.size)) continue;
    const ConstBytes bytes = ConstBytes(area->bytes()).subspan(hint.offset, hint.size);
    ahead_[k] = {true, hint.size, node::CopyOut(bytes, *wanted_.targets(items[k], hint.size))};
  }
}

void DummyGet::NotePlaces(std::span<const size_t> items, const daemon_v1::AcquireReply& reply,
                          uint64_t session) {
  if (hint_keys_.empty()) return;
  std::vector<PlaceHints::Hint> places;
  for (size_t k = 0; k < items.size(); ++k) {
    const auto column = static_cast<int>(k);
    const bool good = results_[items[k]].ok() && reply.checked(column);
    if (good && Lasting(reply.areas(column))) {
      places.push_back({hint_keys_[k], session, reply.areas(column), reply.offsets(column),
                        reply.sizes(column)});
    } else if (!ahead_.empty() && ahead_[k].copied) {
      hints_.Forget(hint_keys_[k]);
    }
  }
  hints_.Note(places);
}

}  // namespace mooncake::client
