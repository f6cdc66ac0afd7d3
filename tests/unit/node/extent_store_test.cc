#include "node/extent_store.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <atomic>
#include <map>
#include <random>
#include <thread>

#include "unit/node/extents.h"

namespace mooncake::node {
namespace {

class ExtentStoreTest : public ::testing::Test {
 protected:
  ExtentStoreTest() { AddSegment(store_, "s0", 64 << 10); }
  uint64_t Used() const { return store_.Usage().first; }
  ExtentStore store_;
};

TEST_F(ExtentStoreTest, AReservationCountsInFullAndIsGivenBackByRetire) {
  EXPECT_EQ(Used(), 0u);
  ExtentPin pin = Reserve(store_, "k", 100);
  ASSERT_TRUE(pin);
  EXPECT_EQ(Used(), 128u);
  EXPECT_EQ(pin->data().size(), 100u);
  EXPECT_TRUE(store_.Retire(*pin));
  EXPECT_FALSE(store_.Retire(*pin));
  EXPECT_EQ(Used(), 128u);  // Still pinned.
  pin = {};
  EXPECT_EQ(Used(), 0u);
}

TEST_F(ExtentStoreTest, ALimitedReservationKeepsASegmentBelowItsShare) {
  const auto reserve = [&](uint64_t size, uint32_t percent) {
    ReserveRequest request{RefOf("k"), size};
    request.fill_percent_max = percent;
    return store_.Reserve(request);
  };
  const uint64_t half = store_.Usage().second / 2;
  EXPECT_FALSE(reserve(half + 64, 50));
  const ExtentPin pin = reserve(half - 4096, 50);
  EXPECT_TRUE(pin);
  EXPECT_FALSE(reserve(8192, 50));
  EXPECT_TRUE(reserve(8192, 100));
  AddSegment(store_, "s1", 64 << 10);
  EXPECT_EQ(reserve(8192, 50)->place().segment, 1u);  // The first one is full enough.
}

TEST_F(ExtentStoreTest, SharedSpaceIsBackedWhenItIsReserved) {
  ExtentStore store;
  const uint32_t index = store.AddSegment("shared", *MappedMemory::MapShared(8 << 20, 0, true));
  const auto committed = [&] {
    struct stat file = {};
    EXPECT_EQ(fstat(store.SegmentMemory(index)->fd(), &file), 0);
    return file.st_blocks;
  };
  EXPECT_EQ(committed(), 0);
  const ExtentPin pin = Reserve(store, "k", 64 << 10);
  EXPECT_GT(committed(), 0);  // The least that asking for a huge page touches.
}

TEST_F(ExtentStoreTest, AnEmptyValueHasAnExtentOfItsOwn) {
  ExtentPin pin = Live(store_, "empty", 0);
  ASSERT_TRUE(pin);
  EXPECT_EQ(pin->data().size(), 0u);
  const Place place = pin->place();
  EXPECT_EQ(store_.Find(0, place.offset, place.generation).get(), pin.get());
}

TEST_F(ExtentStoreTest, APinKeepsTheBytesOfARetiredExtent) {
  ExtentPin pin = Live(store_, "k", 64 << 10);
  Fill(*pin, 'a');
  ASSERT_TRUE(store_.Retire(*pin));
  EXPECT_FALSE(Reserve(store_, "other", 64));
  EXPECT_TRUE(IsFull(*pin, 'a'));
  pin = {};
  EXPECT_TRUE(Reserve(store_, "other", 64));
}

TEST_F(ExtentStoreTest, AReusedPlaceIsAnotherGeneration) {
  ExtentPin first = Live(store_, "k", 100);
  const Place old = first->place();
  store_.Retire(*first);
  EXPECT_FALSE(store_.Find(old.segment, old.offset, old.generation));
  first = {};
  ExtentPin second = Live(store_, "k2", 100);
  EXPECT_EQ(second->place().offset, old.offset);
  EXPECT_NE(second->place().generation, old.generation);
  EXPECT_FALSE(store_.Find(old.segment, old.offset, old.generation));
  EXPECT_TRUE(store_.Find(old.segment, old.offset, second->place().generation));
}

TEST_F(ExtentStoreTest, FindsNothingAtPlacesThatOnlyLookAlike) {
  ExtentPin pin = Live(store_, "k", 100);
  const Place place = pin->place();
  EXPECT_FALSE(store_.Find(1, place.offset, place.generation));
  EXPECT_FALSE(store_.Find(1u << 12, place.offset, place.generation));
  EXPECT_FALSE(store_.Find(~0u, place.offset, place.generation));
  EXPECT_FALSE(store_.Find(0, place.offset + 1, place.generation));
  EXPECT_FALSE(store_.Find(0, place.offset + (1ull << 58), place.generation));
  EXPECT_FALSE(store_.Find(0, ~0ull, ~0ull));
}

TEST_F(ExtentStoreTest, CommitDoesNotBringARetiredExtentBack) {
  ExtentPin pin = Reserve(store_, "k", 100);
  store_.Retire(*pin);
  store_.Commit(*pin, 5);
  EXPECT_EQ(pin->state(), ExtentState::kRetired);
  EXPECT_TRUE(store_.TakeVictims(1, {}).empty());
}

TEST_F(ExtentStoreTest, TheVersionOfAnExtentDoesNotGoBack) {
  ExtentPin pin = Reserve(store_, "k", 100);
  store_.Commit(*pin, 5);
  store_.Commit(*pin, 7);
  store_.Commit(*pin, 5);  // From the other one who says so, late.
  EXPECT_EQ(pin->version(), 7u);
}

TEST_F(ExtentStoreTest, OnlyLiveExtentsAreVictims) {
  ExtentPin reserved = Reserve(store_, "r", 100);
  EXPECT_TRUE(store_.TakeVictims(1, {}).empty());
  store_.Commit(*reserved, 1);
  ExtentPin reader = reserved;  // Beyond the index's pin and one for a route.
  EXPECT_TRUE(store_.TakeVictims(1, {}).empty());
  reader = {};
  EXPECT_EQ(store_.TakeVictims(1, {}).size(), 1u);
}

TEST_F(ExtentStoreTest, VictimsAddUpToWhatWasAskedForAndComeOnce) {
  for (int i = 0; i < 20; ++i) Live(store_, "k" + std::to_string(i), 1000);
  const auto some = store_.TakeVictims(3000, {});
  EXPECT_EQ(some.size(), 3u);
  const auto rest = store_.TakeVictims(1 << 20, {});
  EXPECT_EQ(rest.size(), 17u);
  for (const ExtentPin& victim : some) store_.GiveBack(*victim);
  EXPECT_EQ(store_.TakeVictims(1 << 20, {}).size(), 3u);
}

TEST_F(ExtentStoreTest, TheNewestIsKeptWhenAsked) {
  using Newest = ExtentStore::Newest;
  Live(store_, "pinned", 1000, 1, true);
  Live(store_, "read", 1000)->Touch();
  Live(store_, "new", 1000);
  const auto victims = store_.TakeVictims(1 << 20, {.newest = Newest::kStays});
  ASSERT_EQ(victims.size(), 2u);
  for (const ExtentPin& victim : victims) EXPECT_NE(victim->ref().key, "new");
  EXPECT_TRUE(store_.TakeVictims(1 << 20, {.newest = Newest::kStays}).empty());
  EXPECT_EQ(store_.TakeVictims(1 << 20, {}).size(), 1u);
}

TEST_F(ExtentStoreTest, AVictimGivenBackIsAVictimAgain) {
  Live(store_, "k", 1000);
  store_.GiveBack(*store_.TakeVictims(1, {})[0]);
  auto again = store_.TakeVictims(1, {});
  ASSERT_EQ(again.size(), 1u);
  store_.Retire(*again[0]);
  store_.GiveBack(*again[0]);
  again.clear();
  EXPECT_TRUE(store_.TakeVictims(1, {}).empty());
  EXPECT_EQ(Used(), 0u);
}

TEST_F(ExtentStoreTest, SoftPinsAreTakenLast) {
  Live(store_, "pinned", 1000, 1, true);
  Live(store_, "plain", 1000);
  const auto first = store_.TakeVictims(1, {});
  ASSERT_EQ(first.size(), 1u);
  EXPECT_EQ(first[0]->ref().key, "plain");
  const auto second = store_.TakeVictims(1, {});
  ASSERT_EQ(second.size(), 1u);
  EXPECT_EQ(second[0]->ref().key, "pinned");
}

TEST_F(ExtentStoreTest, SegmentsAreChosenByNameAndState) {
  AddSegment(store_, "s1", 128 << 10);
  EXPECT_EQ(Reserve(store_, "k", 10, false, "s1")->segment_index(), 1u);
  EXPECT_FALSE(Reserve(store_, "k", 10, false, "nowhere"));
  EXPECT_EQ(store_.LargestSegment(), 128u << 10);
  store_.SetSegmentState(1, NodeState::kDraining);
  EXPECT_FALSE(Reserve(store_, "k", 10, false, "s1"));
  EXPECT_EQ(store_.LargestSegment(), 64u << 10);
  EXPECT_EQ(store_.Usage().second, 64u << 10);
}

TEST_F(ExtentStoreTest, RandomCallsKeepTheBooksAndTheBytesOfAModel) {
  std::mt19937_64 random(7);
  std::map<int, ExtentPin> held;  // Each filled with a letter of its own.
  const auto letter = [](int id) { return static_cast<char>('a' + id % 26); };
  for (int step = 0; step < 5000; ++step) {
    if (random() % 3 != 0) {
      if (ExtentPin pin = Live(store_, "k" + std::to_string(step), random() % 4000)) {
        Fill(*pin, letter(step));
        held[step] = pin;
        if (random() % 4 == 0) store_.Retire(*pin);
        continue;
      }
    }
    if (held.empty()) continue;
    auto victim = std::next(held.begin(), static_cast<long>(random() % held.size()));
    EXPECT_TRUE(IsFull(*victim->second, letter(victim->first)));
    store_.Retire(*victim->second);
    held.erase(victim);
  }
  uint64_t bytes = 0;
  for (const auto& [id, pin] : held) {
    EXPECT_TRUE(IsFull(*pin, letter(id)));
    bytes += allocator::ExtentAllocator::RoundUp(pin->size());
    store_.Retire(*pin);
  }
  EXPECT_EQ(Used(), bytes);
  held.clear();
  EXPECT_EQ(Used(), 0u);
}

TEST_F(ExtentStoreTest, ThreadsThatWriteReadEvictAndRetireNeverShareBytes) {
  std::atomic<bool> stop = false;
  std::vector<std::thread> threads;
  for (int t = 0; t < 3; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < 2000; ++i) {
        ExtentPin pin = Reserve(store_, "k" + std::to_string(t), 900);
        if (!pin) continue;
        Fill(*pin, static_cast<char>('a' + t));
        const Place place = pin->place();
        store_.Commit(*pin, 1);
        ASSERT_TRUE(IsFull(*pin, static_cast<char>('a' + t)));
        pin = {};
        if (i % 2 == 0) {
          if (ExtentPin found = store_.Find(place.segment, place.offset, place.generation)) {
            ASSERT_TRUE(IsFull(*found, static_cast<char>('a' + t)));
            store_.Retire(*found);
          }
        }
      }
    });
  }
  threads.emplace_back([&] {
    for (int round = 0; !stop; ++round) {
      for (const ExtentPin& victim : store_.TakeVictims(5000, {})) {
        if (round % 2 == 0) {
          store_.Retire(*victim);
        } else {
          store_.GiveBack(*victim);
        }
      }
    }
  });
  for (int t = 0; t < 3; ++t) threads[t].join();
  stop = true;
  threads[3].join();
  for (size_t shard = 0; shard < ExtentStore::kIndexShards; ++shard) {
    for (const ExtentPin& extent : store_.ShardExtents(shard)) store_.Retire(*extent);
  }
  EXPECT_EQ(Used(), 0u);
}

}  // namespace
}  // namespace mooncake::node
