// A user of the installed package: one store, one value there and back.
#include <mooncake/store.h>

#include <cstdio>
#include <string>

int main() {
  mooncake::StoreConfig config;
  config.local_hostname = "127.0.0.1";
  config.metadata_url = "memory://stranger";
  config.global_segment_size = 16 << 20;
  auto store = mooncake::Store::Open(config);
  if (!store) {
    std::fprintf(stderr, "%s\n", store.error().ToString().c_str());
    return 1;
  }
  const mooncake::Status put = (*store)->Put("key", mooncake::BytesOf("value"));
  const mooncake::Result<std::string> value = (*store)->Get("key");
  (*store)->Close();
  return put && value && *value == "value" ? 0 : 1;
}
