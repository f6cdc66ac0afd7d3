#include "eviction/clock_ring.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
#include <map>
#include <random>
#include <set>
#include <string>
#include <vector>

namespace mooncake::eviction {
namespace {

struct Item : ClockEntry {
  char name = '?';
  bool busy = false;
};

// A ring of items with one-letter names, driven by a script of single steps:
//   a  insert    !a  insert soft-pinned    +a  hit    -a  remove    #a  busy    =a  idle again
//   N (a digit)  take up to N victims, whose names are appended to taken()
class Script {
 public:
  std::string Run(const std::string& script) {
    char action = ' ';
    for (char c : script) {
      if (c == ' ') continue;
      if (c >= '0' && c <= '9') {
        Take(static_cast<size_t>(c - '0'));
      } else if (c >= 'a' && c <= 'z') {
        Step(action, items_[c], c);
        action = ' ';
      } else {
        action = c;
      }
    }
    return taken_;
  }
  ClockRing& ring() { return ring_; }
  size_t asked() const { return asked_; }

 private:
  void Step(char action, Item& item, char name) {
    item.name = name;
    if (action == ' ' || action == '!') ring_.Insert(item, action == '!');
    if (action == '+') item.Touch();
    if (action == '-') ring_.Remove(item);
    if (action == '#' || action == '=') item.busy = action == '#';
  }
  void Take(size_t count) {
    auto victims = ring_.TakeVictims(
        [&](const ClockEntry& entry) {
          ++asked_;
          return !static_cast<const Item&>(entry).busy;
        },
        [&](const std::vector<ClockEntry*>& taken) { return taken.size() >= count; });
    for (ClockEntry* victim : victims) {
      EXPECT_FALSE(victim->in_ring());
      taken_ += static_cast<Item*>(victim)->name;
    }
    taken_ += '.';
  }

  std::map<char, Item> items_;
  ClockRing ring_;
  std::string taken_;
  size_t asked_ = 0;
};

struct Case {
  const char* script;
  const char* taken;  // Victims in order, a point behind each take.
};

TEST(ClockRing, TakesTheColdOnesInClockOrder) {
  const Case cases[] = {
      {"1", "."},
      {"a 0", "."},
      {"a 1", "a."},
      {"a 9 1", "a.."},
      {"abc 1 1 1", "a.b.c."},
      {"abc 3", "abc."},
      {"abc 2 de 9", "ab.cde."},
      // The hand goes on where it stopped.
      {"abcd 1 +b 1 1 1", "a.c.d.b."},
  };
  for (const Case& c : cases) EXPECT_EQ(Script().Run(c.script), c.taken) << c.script;
}

TEST(ClockRing, AHitIsWorthTwoPasses) {
  const Case cases[] = {
      {"abc +a 3", "bca."},
      {"abc +a +b 3", "cab."},
      // However many hits there were.
      {"abc +a +a +a +b 3", "cab."},
      // b spends its grace and one credit while c and d go, then one more.
      {"abcd +b 1 1 +d 9", "a.c.bd."},
      // A hit between takes renews the credit in full.
      {"abcd +b 1 +b 1 1 1", "a.c.d.b."},
      // Removal forgets hits.
      {"ab +a -a a 2", "ba."},
  };
  for (const Case& c : cases) EXPECT_EQ(Script().Run(c.script), c.taken) << c.script;
}

TEST(ClockRing, AFreshEntryIsPassedOverOnce) {
  const Case cases[] = {
      // c comes while a and b have lost their grace.
      {"abx 1 c 1 1 1", "a.b.x.c."},
      // The grace is gone after one pass, whoever was taken in it.
      {"ab 1 c 1 d 1 1", "a.b.c.d."},
      // b has one credit left when y comes: y's grace lets b go first.
      {"abc +b 1 1 y 1 1", "a.c.b.y."},
      // It is one pass, less than a hit is worth.
      {"ab +b 1 y 1 1", "a.y.b."},
  };
  for (const Case& c : cases) EXPECT_EQ(Script().Run(c.script), c.taken) << c.script;
}

TEST(ClockRing, SoftPinsGoLastAndOldestFirst) {
  const Case cases[] = {
      {"!a b !c d 4", "bdac."},
      {"!a b !c d 1 1 1 1", "b.d.a.c."},
      // Hits on unpinned entries do not make pinned ones go first; hits on pinned ones do not
      // prolong the pin.
      {"!a b !c +b +a 3", "bac."},
      // An unpinned newcomer goes before an old pin.
      {"!a !b 1 c 1 1", "a.c.b."},
      // A busy pin is passed over and is still the oldest afterwards.
      {"!a !b !c #a 1 =a 1 1", "b.a.c."},
      // With only busy unpinned ones left a write must still find room.
      {"a !b #a 1 =a 1", "b.a."},
  };
  for (const Case& c : cases) EXPECT_EQ(Script().Run(c.script), c.taken) << c.script;
}

TEST(ClockRing, ALapsedPinStaysLapsedWhenRead) {
  // The pin of a lapses: out and in again, unpinned. Hits give credit but no pin.
  EXPECT_EQ(Script().Run("!a !b -a a +a 1 1"), "a.b.");
  EXPECT_EQ(Script().Run("!a !b c -a a +a 1 1 1"), "c.a.b.");
}

TEST(ClockRing, SkipsBusyEntriesAndKeepsTheirCredit) {
  const Case cases[] = {
      {"abc #a 2 =a 1", "bc.a."},
      {"abc #a #b #c 3 =b 3", ".b."},
      // a had its hit before it was busy, and still has it.
      {"abc +a #a 1 =a 1 1", "b.c.a."},
  };
  for (const Case& c : cases) EXPECT_EQ(Script().Run(c.script), c.taken) << c.script;
}

TEST(ClockRing, EndsWhenNothingIsEvictable) {
  Script script;
  EXPECT_EQ(script.Run("abc !d !e #a #b #c #d #e +a 9"), ".");
  EXPECT_LE(script.asked(), 5u * (kHitCredit + 2));
  EXPECT_EQ(script.ring().size(), 5u);
}

TEST(ClockRing, LooksAtNoEntryMoreThanFourTimes) {
  Script script;
  EXPECT_EQ(script.Run("abcd +a +b +c +d 9"), "abcd.");
  EXPECT_LE(script.asked(), 4u * (kHitCredit + 2));
}

TEST(ClockRing, HitsThatKeepComingNeitherBlockNorReachThePins) {
  std::deque<Item> items(4);
  ClockRing ring;
  for (size_t i = 0; i < items.size(); ++i) ring.Insert(items[i], i == 3);
  size_t asked = 0;
  auto victims = ring.TakeVictims(
      [&](const ClockEntry& entry) {
        ++asked;
        const_cast<ClockEntry&>(entry).Touch();
        return true;
      },
      [](const auto& taken) { return taken.size() == 3; });
  EXPECT_EQ(victims.size(), 3u);
  EXPECT_LE(asked, 3u * (kHitCredit + 2));
  EXPECT_TRUE(items[3].in_ring());
}

TEST(ClockRing, RemoveWorksAnywhere) {
  const Case cases[] = {
      {"abc -a 2", "bc."},     // Under the hand.
      {"abc 1 -b 1", "a.c."},  // Under the hand after a take.
      {"abc -c 2", "ab."},     // Just behind it.
      {"a -a 1 a 1", ".a."},   // The only one.
      {"!a !b -a 1", "b."},    // The oldest pin.
      {"ab -a -a 1", "b."},    // Twice: no-op.
      {"ab 1 -a 1", "a.b."},   // A victim is out already.
  };
  for (const Case& c : cases) EXPECT_EQ(Script().Run(c.script), c.taken) << c.script;
}

TEST(ClockRing, AVictimCanBePutBack) {
  Script script;
  EXPECT_EQ(script.Run("abc 1 a 1 1 1"), "a.b.c.a.");
  EXPECT_EQ(script.ring().size(), 0u);
}

TEST(ClockRing, StopsWhenTheBytesSuffice) {
  std::deque<Item> items(10);
  ClockRing ring;
  for (Item& item : items) ring.Insert(item, false);
  auto victims = ring.TakeVictims([](const ClockEntry&) { return true; },
                                  [](const auto& taken) { return taken.size() * 100 >= 250; });
  EXPECT_EQ(victims.size(), 3u);
  EXPECT_EQ(ring.size(), 7u);
}

TEST(ClockRing, LosesAndInventsNothingInARandomHistory) {
  std::deque<Item> items(64);
  std::set<const ClockEntry*> inside;
  ClockRing ring;
  std::mt19937 random(7);
  for (int step = 0; step < 50'000; ++step) {
    Item& item = items[random() % items.size()];
    uint32_t action = random() % 8;
    if (action < 4 && !item.in_ring()) {
      ring.Insert(item, random() % 4 == 0);
      inside.insert(&item);
    } else if (action == 4) {
      ring.Remove(item);
      inside.erase(&item);
    } else if (action == 5) {
      item.busy = !item.busy;
    } else if (action == 6) {
      size_t count = random() % 4;
      bool only_pins_left = true;
      auto idle = [](const ClockEntry& e) { return !static_cast<const Item&>(e).busy; };
      auto victims =
          ring.TakeVictims(idle, [&](const auto& taken) { return taken.size() >= count; });
      for (const ClockEntry* victim : victims) EXPECT_EQ(inside.erase(victim), 1u);
      for (const ClockEntry* entry : inside) {
        if (idle(*entry)) only_pins_left &= entry->soft_pinned();
      }
      bool took_pin = !victims.empty() && victims.back()->soft_pinned();
      EXPECT_TRUE(!took_pin || only_pins_left);
      if (victims.size() < count) {
        EXPECT_TRUE(std::none_of(inside.begin(), inside.end(),
                                 [&](const ClockEntry* entry) { return idle(*entry); }));
      }
    } else {
      item.Touch();
    }
    ASSERT_EQ(ring.size(), inside.size());
  }
}

}  // namespace
}  // namespace mooncake::eviction
