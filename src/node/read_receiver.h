// ReadReceiver: the reply to a get of some items, or to a read of some places, scattered into the
// memory of the items that have bytes in it while their checksums are checked.
#pragma once

#include <optional>
#include <span>
#include <vector>

#include "node/payload.h"
#include "node/read_op.h"
#include "node/wire.h"
#include "transfer/transport.h"

namespace mooncake::node {

// What a receiver asks of the read it belongs to.
class ReadPlan {
 public:
  virtual ~ReadPlan() = default;
  virtual NameTable& names() = 0;
  virtual const ReadItem& item(uint32_t i) const = 0;
  virtual bool ranged() const = 0;
  // Of an item that is read by place.
  virtual const Route& known_route(uint32_t i) const = 0;
  // Where `size` bytes of item i go; empty: they do not fit.
  virtual std::optional<std::span<const MutableBytes>> TargetsOf(uint32_t i, uint64_t size) = 0;
};

// Receives the reply to a get of some items, or to a read of some places.
class ReadReceiver : public CallObserver {
 public:
  ReadReceiver(ReadPlan& op, const std::vector<uint32_t>& items, bool by_place)
      : op_(op), items_(items), by_place_(by_place) {}
  Result<std::span<const MutableBytes>> OnReply(std::string_view message,
                                                uint64_t payload_size) override;
  void OnReceive(size_t piece, ConstBytes chunk) override { plan_.OnReceive(piece, chunk); }

  std::vector<ItemCode> codes;
  std::vector<uint64_t> sizes;    // Of the whole values.
  std::vector<Version> versions;  // Empty when they were not asked for.
  std::vector<uint64_t> checksums;
  std::vector<uint32_t> values;              // Index in the plan of each item with bytes.
  std::vector<std::optional<Route>> routes;  // Of the items whose bytes are elsewhere.
  uint64_t revision = 0;
  bool Right(size_t i) const { return plan_.Right(values[i]); }

 private:
  Status ReadGet(std::string_view message);
  Status ReadPlaces(std::string_view message);
  Status Place(size_t i, uint64_t size, uint64_t checksum);

  ReadPlan& op_;
  const std::vector<uint32_t>& items_;
  const bool by_place_;
  ScatterPlan plan_;
  size_t next_value_ = 0;      // Values in the plan so far.
  uint64_t payload_left_ = 0;  // Bytes of the payload that no item has claimed yet.
};

}  // namespace mooncake::node
