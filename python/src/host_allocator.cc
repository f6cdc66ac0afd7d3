#include "host_allocator.h"

#include <fcntl.h>
#include <linux/memfd.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <fstream>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "args.h"
#include "base/mutex.h"
#include "errors.h"
#include "gil.h"
#include "mooncake/result.h"
#include "runtime/huge_pages.h"
#include "runtime/memory_limit.h"
#include "store_object.h"

namespace mooncake::python {
namespace {

struct Region {
  void* data = nullptr;
  uint64_t mapped = 0;
  int fd = -1;
  uint64_t allocation = 0;  // Never the same twice.
  bool freeing = false;     // Somebody waits for the last calls that use it.
};

// By address, of the whole process: any allocator may free what another one gave out, and a
// dummy store finds the memory behind a pointer here, without the GIL.
struct RegionTable {
  base::Mutex mu;
  std::map<uint64_t, Region> by_address MC_GUARDED_BY(mu);
  uint64_t last_allocation MC_GUARDED_BY(mu) = 0;
};

RegionTable& Table() {
  static RegionTable table;
  return table;
}

// What the kernel could give now; UINT64_MAX when it does not say.
uint64_t BytesAvailable() {
  std::ifstream meminfo("/proc/meminfo");
  std::string name;
  uint64_t kib = 0;
  std::string unit;
  while (meminfo >> name >> kib) {
    if (name == "MemAvailable:") return kib << 10;
    std::getline(meminfo, unit);
  }
  return UINT64_MAX;
}

Error CannotAllocate(uint64_t size, uint64_t hugepage_size, const std::string& reason) {
  std::string text = "cannot allocate " + std::to_string(size) + " bytes";
  if (hugepage_size > 0) {
    text += " in pages of " + std::to_string(hugepage_size >> 20) + " MiB";
  }
  text += ": " + reason;
  if (hugepage_size == 0) {
    text += "; ask for less, or raise the memory limit of the process";
  } else if (hugepage_size == uint64_t{1} << 30) {
    text += "; reserve pages in /sys/kernel/mm/hugepages/hugepages-1048576kB/nr_hugepages";
  } else {
    const uint64_t pages = (size + hugepage_size - 1) / hugepage_size;
    text += "; reserve them with: sysctl -w vm.nr_hugepages=" + std::to_string(pages);
  }
  return NoSpace(text);
}

// Populating more than there is would end the process instead of the call.
Status CheckAvailable(uint64_t size, uint64_t mapped) {
  constexpr uint64_t kCheckedMin = 1 << 20;  // Looking takes as long as populating that.
  if (mapped < kCheckedMin) return Ok();
  if (const uint64_t available = BytesAvailable(); mapped > available) {
    return CannotAllocate(size, 0, "only " + std::to_string(available) + " bytes are available");
  }
  Status fits = CheckMemoryLimits(mapped, LimitCheck::kNow, MemoryLimits());
  if (fits.ok()) return fits;
  return NoSpace("cannot allocate " + std::to_string(size) + " bytes: " + fits.error().context);
}

void Unmap(const Region& region) {
  if (region.data != nullptr) munmap(region.data, region.mapped);
  if (region.fd >= 0) close(region.fd);
}

// False: errno says why not.
bool Populate(const Region& region, bool hugepages) {
  const MutableBytes memory(static_cast<std::byte*>(region.data), region.mapped);
  if (!hugepages) HugePages(memory).Prepare(0, memory.size());
  constexpr int kPopulateWrite = 23;  // MADV_POPULATE_WRITE, which older headers lack.
  if (madvise(region.data, region.mapped, kPopulateWrite) == 0) return true;
  if (errno != EINVAL) return false;
  // Before Linux 5.14: as a caller would, page by page.
  const auto page = static_cast<size_t>(getpagesize());
  for (size_t at = 0; at < memory.size(); at += page) {
    *const_cast<volatile std::byte*>(&memory[at]) = std::byte{0};
  }
  return true;
}

Result<Region> Map(uint64_t size, uint64_t hugepage_size) {
  const uint64_t page = hugepage_size > 0 ? hugepage_size : static_cast<uint64_t>(getpagesize());
  if (size > static_cast<uint64_t>(PTRDIFF_MAX) - page) {
    return CannotAllocate(size, hugepage_size, "larger than any address space");
  }
  Region region;
  region.mapped = (size + page - 1) / page * page;
  if (hugepage_size == 0) {
    MC_RETURN_IF_ERROR(CheckAvailable(size, region.mapped));
  }
  unsigned flags = MFD_CLOEXEC | MFD_ALLOW_SEALING;
  if (hugepage_size > 0) {
    flags |= MFD_HUGETLB | (hugepage_size == uint64_t{1} << 30 ? MFD_HUGE_1GB : MFD_HUGE_2MB);
  }
  region.fd = memfd_create("mooncake_store_rs_shm", flags);
  if (region.fd < 0) return CannotAllocate(size, hugepage_size, std::strerror(errno));
  const bool sized = ftruncate(region.fd, static_cast<off_t>(region.mapped)) == 0 &&
                     fcntl(region.fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) == 0;
  constexpr int kReadWrite = PROT_READ | PROT_WRITE;
  void* data = MAP_FAILED;
  if (sized) {
    data = hugepage_size == 0 ? HugePages::MapFile(region.fd, region.mapped, kReadWrite)
                              : mmap(nullptr, region.mapped, kReadWrite, MAP_SHARED, region.fd, 0);
  }
  if (data != MAP_FAILED) region.data = data;
  if (data == MAP_FAILED || !Populate(region, hugepage_size > 0)) {
    const int reason = errno;
    Unmap(region);
    return CannotAllocate(size, hugepage_size, std::strerror(reason));
  }
  return region;
}

constexpr Signature<2> kAlloc{"alloc", {"size", "hugepage_size"}, 2, 2};

PyObject* HostAlloc(PyObject*, const CallArgs& args) {
  std::array<PyObject*, 2> given;
  uint64_t size = 0;
  uint64_t hugepage_size = 0;
  if (!ParseArgs(kAlloc, args, given) || !UnsignedFrom(given[0], {"alloc", "size"}, &size) ||
      !UnsignedFrom(given[1], {"alloc", "hugepage_size"}, &hugepage_size)) {
    return nullptr;
  }
  if (size == 0) return RaiseValue("alloc: size must be at least 1, got 0");
  Result<Region> region = Region{};
  {
    WithoutGil released;
    region = Map(size, hugepage_size);
  }
  if (!region) return Raise(region.error());
  const uint64_t address = reinterpret_cast<uint64_t>(region->data);
  RegionTable& table = Table();
  base::MutexLock lock(table.mu);
  region->allocation = ++table.last_allocation;
  table.by_address[address] = *region;
  return PyLong_FromUnsignedLongLong(address);
}

constexpr Signature<1> kFree{"free", {"ptr"}, 1, 1};

// Ends what the process's stores have registered of memory that is about to go, and waits for
// their calls. Without the GIL, which is why the caller has listed them.
Status UnregisterEverywhere(const std::vector<std::shared_ptr<Store>>& stores,
                            const Region& region) {
  for (const std::shared_ptr<Store>& store : stores) {
    MC_RETURN_IF_ERROR(store->UnregisterWithin(region.data, region.mapped));
  }
  return Ok();
}

PyObject* HostFree(PyObject*, const CallArgs& args) {
  std::array<PyObject*, 1> given;
  uint64_t address = 0;
  if (!ParseArgs(kFree, args, given) || !UnsignedFrom(given[0], {"free", "ptr"}, &address)) {
    return nullptr;
  }
  RegionTable& table = Table();
  std::optional<Region> taken;
  {
    base::MutexLock lock(table.mu);
    const auto found = table.by_address.find(address);
    if (found != table.by_address.end() && !std::exchange(found->second.freeing, true)) {
      taken = found->second;
    }
  }
  if (!taken) return Raise(NotFound("free: no allocation begins at " + std::to_string(address)));
  Status unused;
  std::vector<std::shared_ptr<Store>> stores = StoresOfProcess();
  {
    WithoutGil released;
    unused = UnregisterEverywhere(stores, *taken);
    stores.clear();  // May be the last share of one.
    {
      base::MutexLock lock(table.mu);
      if (unused.ok()) {
        table.by_address.erase(address);
      } else {
        table.by_address[address].freeing = false;
      }
    }
    if (unused.ok()) Unmap(*taken);
  }
  if (PyErr_Occurred() != nullptr) return nullptr;
  if (unused.ok()) return PyLong_FromLong(0);
  return RaiseRuntime("free: the memory at %llu stays: %s",
                      static_cast<unsigned long long>(address), unused.error().context.c_str());
}

PyMethodDef kFunctions[] = {
    Method<HostAlloc>("host_alloc",
                      "host_alloc(size, hugepage_size)\n--\n\n"
                      "Shared memory at a page boundary, and its address. hugepage_size 0:\n"
                      "ordinary pages."),
    Method<HostFree>(
        "host_free",
        "host_free(ptr)\n--\n\n"
        "Give back what host_alloc returned; no store of the process has it registered any\n"
        "more. KeyError for any other address; RuntimeError, and the memory stays, when calls\n"
        "that use it do not end within the request timeout."),
    {nullptr, nullptr, 0, nullptr},
};

}  // namespace

std::optional<SharedRange> FindHostMemory(const void* data, size_t size) {
  const auto address = reinterpret_cast<uint64_t>(data);
  RegionTable& table = Table();
  base::MutexLock lock(table.mu);
  auto found = table.by_address.upper_bound(address);
  if (found == table.by_address.begin()) return std::nullopt;
  const Region& region = (--found)->second;
  const uint64_t offset = address - found->first;
  if (offset >= region.mapped || size > region.mapped - offset) return std::nullopt;
  return SharedRange{region.allocation, region.fd, region.mapped, offset};
}

bool AddHostAllocator(PyObject* module) { return PyModule_AddFunctions(module, kFunctions) == 0; }

}  // namespace mooncake::python
