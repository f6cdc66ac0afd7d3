#include "node/payload.h"

#include <gtest/gtest.h>

#include <cstring>
#include <random>
#include <string>

#include "node/wire.h"

namespace mooncake::node {
namespace {

std::string Letters(std::mt19937_64& random, size_t size) {
  std::string text(size, '\0');
  for (char& letter : text) letter = static_cast<char>(random());
  return text;
}

// Cuts memory into random pieces, empty ones among them.
template <typename Bytes>
std::vector<Bytes> Cut(std::mt19937_64& random, Bytes all) {
  std::vector<Bytes> pieces;
  while (!all.empty()) {
    const size_t take = std::min<size_t>(all.size(), random() % 700);
    pieces.push_back(all.first(take));
    all = all.subspan(take);
  }
  return pieces;
}

MutableBytes Writable(std::string& text) { return MutableBytesAt(text.data(), text.size()); }

// Sends all pieces in chunks, as a transport does; returns the wire's bytes.
std::string Send(std::mt19937_64& random, GatherPlan& plan, const std::vector<ConstBytes>& pieces,
                 size_t stop_after = ~size_t{0}) {
  std::string wire;
  for (size_t piece = 0; piece < pieces.size(); ++piece) {
    ConstBytes rest = pieces[piece];
    do {
      if (wire.size() >= stop_after) return wire;
      const ConstBytes chunk = rest.first(std::min<size_t>(rest.size(), 1 + random() % 5000));
      plan.OnSend(piece, chunk);
      wire.append(TextOf(chunk));
      rest = rest.subspan(chunk.size());
    } while (!rest.empty());
  }
  return wire;
}

TEST(GatherPlan, SendsTheValuesAndThenTheirChecksums) {
  std::mt19937_64 random(1);
  for (int round = 0; round < 100; ++round) {
    std::vector<std::string> values;
    for (size_t i = 0; i < random() % 6; ++i) values.push_back(Letters(random, random() % 9000));
    GatherPlan plan;
    std::string expected;
    for (const std::string& value : values) {
      plan.Add(Cut(random, BytesOf(value)));
      expected += value;
    }
    for (const std::string& value : values) {
      std::byte checksum[kChecksumBytes];
      StoreChecksum(base::Checksum(BytesOf(value)), checksum);
      expected += TextOf(checksum);
    }
    EXPECT_TRUE(Send(random, plan, plan.Seal()) == expected);
    for (size_t i = 0; i < values.size(); ++i) {
      EXPECT_EQ(plan.ChecksumOf(i), base::Checksum(BytesOf(values[i])));
    }
  }
}

TEST(GatherPlan, StartsAgainFromAnyPoint) {
  std::mt19937_64 random(2);
  const std::string value = Letters(random, 20'000);
  for (size_t stop : {0u, 1u, 5000u, 19'999u, 20'000u, 20'008u}) {
    GatherPlan plan;
    plan.Add(Cut(random, BytesOf(value)));
    const auto& pieces = plan.Seal();
    Send(random, plan, pieces, stop);
    plan.Restart();
    const std::string wire = Send(random, plan, pieces);
    EXPECT_TRUE(wire.starts_with(value));
    EXPECT_EQ(LoadChecksum(reinterpret_cast<const std::byte*>(&wire[value.size()])),
              base::Checksum(BytesOf(value)));
  }
}

// Delivers `wire` to a plan's pieces as a transport does.
void Receive(std::mt19937_64& random, ScatterPlan& plan, std::string_view wire) {
  for (size_t piece = 0; piece < plan.pieces().size(); ++piece) {
    MutableBytes rest = plan.pieces()[piece];
    while (!rest.empty()) {
      const MutableBytes chunk = rest.first(std::min<size_t>(rest.size(), 1 + random() % 5000));
      std::memcpy(chunk.data(), wire.data(), chunk.size());
      plan.OnReceive(piece, chunk);
      wire.remove_prefix(chunk.size());
      rest = rest.subspan(chunk.size());
    }
  }
}

TEST(ScatterPlan, FillsTheTargetsAndTellsRightValuesFromWrongOnes) {
  std::mt19937_64 random(3);
  for (int round = 0; round < 100; ++round) {
    ScatterPlan plan;
    std::vector<std::string> values, memory;
    std::vector<bool> spoilt;
    std::string wire;
    for (size_t i = 0; i < 1 + random() % 6; ++i)
      values.push_back(Letters(random, random() % 9000));
    for (const std::string& value : values) memory.push_back(std::string(value.size() + 10, '.'));
    for (size_t i = 0; i < values.size(); ++i) {
      plan.Add(Cut(random, Writable(memory[i])), values[i].size(), true,
               base::Checksum(BytesOf(values[i])));
      std::string sent = values[i];
      spoilt.push_back(!sent.empty() && random() % 3 == 0);
      if (spoilt[i]) sent[random() % sent.size()] ^= 1;
      wire += sent;
    }
    Receive(random, plan, wire);
    for (size_t i = 0; i < values.size(); ++i) {
      EXPECT_EQ(plan.Right(i), !spoilt[i]);
      if (!spoilt[i]) {
        EXPECT_TRUE(memory[i] == values[i] + "..........");
      }
    }
  }
}

TEST(ScatterPlan, AValueWhoseBytesHaveNotAllComeIsNotRight) {
  std::string memory(100, '.');
  const MutableBytes target = Writable(memory);
  ScatterPlan plan;
  plan.Add({&target, 1}, 100, false, 0);
  EXPECT_FALSE(plan.Right(0));
  plan.OnReceive(0, target.first(60));
  EXPECT_FALSE(plan.Right(0));
  plan.OnReceive(0, target.subspan(60));
  EXPECT_TRUE(plan.Right(0));
}

TEST(ScatterPlan, AnEmptyValueIsRightUnlessItsChecksumIsNot) {
  ScatterPlan plan;
  plan.Add({}, 0, true, base::Checksum(ConstBytes()));
  plan.Add({}, 0, true, 12345);
  plan.Add({}, 0, false, 12345);
  EXPECT_TRUE(plan.Right(0));
  EXPECT_FALSE(plan.Right(1));
  EXPECT_TRUE(plan.Right(2));
}

TEST(CopyOut, AndCopyInMoveTheSameBytesAsOneCopy) {
  std::mt19937_64 random(4);
  for (int round = 0; round < 200; ++round) {
    const std::string value = Letters(random, random() % 60'000);
    std::string memory(value.size() + random() % 100, '.');
    const auto targets = Cut(random, Writable(memory));
    EXPECT_EQ(CopyOut(BytesOf(value), targets), base::Checksum(BytesOf(value)));
    EXPECT_TRUE(memory.substr(0, value.size()) == value);
    EXPECT_EQ(memory.find_first_not_of('.', value.size()), std::string::npos);
    std::string joined(value.size(), '.');
    EXPECT_EQ(CopyIn(Cut(random, BytesOf(value)), Writable(joined)),
              base::Checksum(BytesOf(value)));
    EXPECT_TRUE(joined == value);
  }
}

}  // namespace
}  // namespace mooncake::node
