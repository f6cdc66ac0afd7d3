// A route table of the default number of slots beside a segment of 64 KiB.
#pragma once

#include <gtest/gtest.h>

#include "node/route_table.h"
#include "unit/node/extents.h"

namespace mooncake::node {

using routing::Slot;

inline Slot SlotOf(const KeyRef& ref) { return routing::Slots().Of(ref.hash); }

inline Place Remote(NameIndex owner, uint64_t generation = 1) { return {owner, 0, 64, generation}; }

inline Route RouteOf(Version version, std::vector<Place> replicas, uint64_t size = 10) {
  return {version, size, 0, false, false, std::move(replicas)};
}

class RouteTableTest : public ::testing::Test {
 protected:
  RouteTableTest() { AddSegment(extents_, "s0", 64 << 10); }
  ~RouteTableTest() override {
    for (size_t shard = 0; shard < ExtentStore::kIndexShards; ++shard) {
      for (const ExtentPin& extent : extents_.ShardExtents(shard)) extents_.Retire(*extent);
    }
  }

  void Serve(std::string_view key, uint64_t term = 1) {
    const Slot slots[] = {SlotOf(RefOf(key))};
    table_.BeginTakeover(slots, term);
    table_.EndTakeover(slots, term);
  }
  ItemCode Publish(std::string_view key, Publication publication, Superseded* superseded = nullptr,
                   Version* version = nullptr) {
    Superseded ignored_superseded;
    Version ignored = 0;
    return table_.Publish(RefOf(key), std::move(publication), version ? version : &ignored,
                          superseded ? superseded : &ignored_superseded);
  }
  Publication At(std::vector<Place> remote) { return {.size = 10, .remote = std::move(remote)}; }
  ItemCode Look(std::string_view key, Route* route = nullptr, ExtentPin* local = nullptr) {
    return table_.Lookup(RefOf(key), route, local);
  }

  ExtentStore extents_;
  RouteTable table_{extents_};
};

}  // namespace mooncake::node
