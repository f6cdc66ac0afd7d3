// Getting values through a daemon: asks where they lie, copies them from there, and checks what
// was copied.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "client/dummy/link.h"
#include "client/dummy/messages.h"
#include "client/dummy/place_hints.h"
#include "mooncake/bytes.h"
#include "mooncake/result.h"

namespace mooncake::client {

// What one read wants, whatever it was called as.
struct GetWanted {
  std::span<const std::string_view> keys;
  std::vector<uint64_t> limits;   // UINT64_MAX: whatever size the value has.
  std::vector<uint64_t> offsets;  // Empty unless ranged.
  bool allow_inline = false;
  // Gives the memory for item i, whose size is now known. Empty: it does not fit.
  std::function<std::optional<std::span<const MutableBytes>>(size_t i, uint64_t size)> targets;
};

// One read of a batch: asks in parts, copies, asks again for what turned out wrong.
class DummyGet {
 public:
  // All outlive it.
  DummyGet(Link& link, Runtime& runtime, PlaceHints& hints, const GetWanted& wanted,
           std::string_view tenant);
  std::vector<Result<uint64_t>> Run();

 private:
  // What was copied before the daemon has said that it is there.
  struct Ahead {
    bool copied = false;
    uint64_t size = 0;
    uint64_t checksum = 0;
  };

  size_t EndOfPart(const std::vector<size_t>& pending, size_t begin) const;
  void Ask(std::span<const size_t> items, std::vector<size_t>* again);
  void Fill(std::span<const size_t> items, daemon_v1::AcquireRequest* request) const;
  void Settle(std::span<const size_t> items, const daemon_v1::AcquireReply& reply, uint64_t session,
              std::vector<size_t>* again);
  Result<uint64_t> Copy(size_t i, const daemon_v1::AcquireReply& reply, int k, uint64_t session);
  bool MayCopyAhead(std::span<const size_t> items) const;
  // Where the items were found last; empty: nobody is to look there, or to note it.
  std::vector<PlaceHints::Hint> FindHints(std::span<const size_t> items);
  void CopyAhead(std::span<const size_t> items, std::span<const PlaceHints::Hint> hints,
                 uint64_t session);
  void NotePlaces(std::span<const size_t> items, const daemon_v1::AcquireReply& reply,
                  uint64_t session);

  static constexpr size_t kMessageBytes = 24 << 10;  // Of a batch of the usual size.

  Link& link_;
  Runtime& runtime_;
  PlaceHints& hints_;
  const GetWanted& wanted_;
  const std::string_view tenant_;
  uint64_t start_ms_ = 0;
  std::vector<Result<uint64_t>> results_;
  std::vector<uint64_t> hint_keys_;  // As the items of a part; empty: places are not noted.
  std::vector<Ahead> ahead_;
  alignas(8) char messages_[kMessageBytes];
};

}  // namespace mooncake::client
