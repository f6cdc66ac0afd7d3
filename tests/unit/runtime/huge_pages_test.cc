#include "runtime/huge_pages.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "runtime/mapped_memory.h"
#include "runtime/real_runtime.h"

namespace mooncake {
namespace {

constexpr uint64_t kUnit = HugePages::kUnitBytes;
constexpr uint64_t kUnits = 8;
constexpr uint64_t kPage = 4096;

// How much of the mapping at `data` this process sees through huge pages of a file.
uint64_t HugeBytes(const std::byte* data) {
  std::ifstream smaps("/proc/self/smaps");
  bool inside = false;
  for (std::string line; std::getline(smaps, line);) {
    unsigned long begin = 0;
    unsigned long end = 0;
    if (sscanf(line.c_str(), "%lx-%lx ", &begin, &end) == 2) {
      const auto at = reinterpret_cast<uintptr_t>(data);
      inside = begin <= at && at < end;
    }
    unsigned long kib = 0;
    if (inside && sscanf(line.c_str(), "ShmemPmdMapped: %lu kB", &kib) == 1) return kib << 10;
  }
  return 0;
}

// What the file behind the memory takes.
uint64_t CommittedBytes(const MappedMemory& memory) {
  struct stat file = {};
  return fstat(memory.fd(), &file) == 0 ? static_cast<uint64_t>(file.st_blocks) * 512 : 0;
}

class HugePagesTest : public testing::Test {
 protected:
  // Asks the kernel directly. Before Linux 6.1, without transparent huge pages, or where they
  // are switched off ("never"), there are none to be had.
  void SetUp() override {
    std::ifstream file("/sys/kernel/mm/transparent_hugepage/enabled");
    std::string modes;
    std::getline(file, modes);
    if (modes.empty() || modes.find("[never]") != std::string::npos) {
      GTEST_SKIP() << "transparent huge pages are switched off: '" << modes << "'";
    }
    const MappedMemory memory = Memory();
    memory.bytes()[0] = std::byte{1};
    constexpr int kCollapse = 25;  // MADV_COLLAPSE
    if (madvise(memory.bytes().data(), kUnit, kCollapse) != 0) {
      GTEST_SKIP() << "the kernel gives no huge pages for shared memory: " << strerror(errno);
    }
  }

  static MappedMemory Memory(uint64_t bytes = kUnits * kUnit) {
    return *MappedMemory::MapShared(bytes, 0, true);
  }
};

TEST_F(HugePagesTest, BackWhatIsPrepared) {
  const MappedMemory memory = Memory();
  memory.Prepare(0, memory.bytes().size());
  EXPECT_EQ(HugeBytes(memory.bytes().data()), kUnits * kUnit);
  EXPECT_TRUE(std::all_of(memory.bytes().begin(), memory.bytes().end(),
                          [](std::byte byte) { return byte == std::byte{0}; }));
}

TEST_F(HugePagesTest, BackNothingElse) {
  const MappedMemory memory = Memory();
  EXPECT_EQ(CommittedBytes(memory), 0u);
  memory.Prepare(3 * kUnit + 100, 1000);
  memory.Prepare(3 * kUnit + 2000, 1000);
  EXPECT_EQ(CommittedBytes(memory), kUnit);
  memory.Prepare(5 * kUnit - 1, 2);
  EXPECT_EQ(CommittedBytes(memory), 3 * kUnit);
  EXPECT_EQ(HugeBytes(memory.bytes().data()), 3 * kUnit);
}

TEST_F(HugePagesTest, LeaveTheEndThatIsNoUnitAlone) {
  const MappedMemory memory = Memory(kUnit + 3 * kPage);
  memory.Prepare(0, memory.bytes().size());
  memory.Prepare(kUnit, 3 * kPage);
  EXPECT_EQ(CommittedBytes(memory), kUnit);
  memory.bytes().back() = std::byte{1};
  const MappedMemory small = Memory(kUnit - kPage);
  small.Prepare(0, kUnit - kPage);
  EXPECT_EQ(CommittedBytes(small), 0u);
}

TEST_F(HugePagesTest, KeepWhatNeighboursWrote) {
  const MappedMemory memory = Memory();
  const MutableBytes early = memory.bytes().subspan(kPage, 10 * kPage);  // Without asking.
  std::fill(early.begin(), early.end(), std::byte{7});
  memory.Prepare(20 * kPage, kPage);
  EXPECT_EQ(HugeBytes(memory.bytes().data()), kUnit);
  EXPECT_TRUE(
      std::all_of(early.begin(), early.end(), [](std::byte byte) { return byte == std::byte{7}; }));
}

TEST_F(HugePagesTest, AreSeenByWhoeverMapsTheFile) {
  const MappedMemory memory = Memory();
  memory.Prepare(0, memory.bytes().size());
  const MappedMemory other = *MappedMemory::MapDescriptor(fcntl(memory.fd(), F_DUPFD_CLOEXEC, 0),
                                                          memory.bytes().size(), false);
  memory.bytes()[kUnit] = std::byte{5};
  EXPECT_EQ(other.bytes()[kUnit], std::byte{5});
  EXPECT_GE(HugeBytes(other.bytes().data()), kUnit);
}

TEST_F(HugePagesTest, AskLessAndLessOftenForWhatIsRefused) {
  const MappedMemory memory = Memory();
  ASSERT_EQ(prctl(PR_SET_THP_DISABLE, 1, 0, 0, 0), 0);
  memory.Prepare(0, kUnit);  // Refused: the next two units do not ask.
  ASSERT_EQ(prctl(PR_SET_THP_DISABLE, 0, 0, 0, 0), 0);
  for (uint64_t unit = 1; unit < 4; ++unit) {
    memory.Prepare(unit * kUnit, kUnit);
    EXPECT_EQ(HugeBytes(memory.bytes().data()), unit < 3 ? 0 : kUnit) << unit;
  }
  for (uint64_t unit = 0; unit < kUnits; ++unit) memory.bytes()[unit * kUnit] = std::byte{1};
}

TEST_F(HugePagesTest, AreAskedForByManyThreads) {
  constexpr uint64_t kRange = 64 << 10;
  constexpr uint64_t kThreads = 4;
  const MappedMemory memory = Memory();
  runtime::RealRuntime runtime;
  std::vector<std::unique_ptr<Thread>> threads;
  for (uint64_t t = 0; t < kThreads; ++t) {
    threads.push_back(runtime.Spawn("fill", [&memory, t] {
      for (uint64_t at = t * kRange; at < memory.bytes().size(); at += kThreads * kRange) {
        memory.Prepare(at, kRange);
        std::memset(&memory.bytes()[at], static_cast<int>(t + 1), kRange);
      }
    }));
  }
  threads.clear();
  for (uint64_t at = 0; at < memory.bytes().size(); ++at) {
    ASSERT_EQ(memory.bytes()[at], std::byte(at / kRange % kThreads + 1)) << at;
  }
}

}  // namespace
}  // namespace mooncake
