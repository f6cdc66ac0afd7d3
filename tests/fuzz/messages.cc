#include "fuzz/messages.h"

namespace mooncake::fuzz {
namespace {

using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using google::protobuf::Reflection;

constexpr int kCopiesMax = 40;
constexpr size_t kTextBytesMax = 600;

// In fields of text, bytes that are no UTF-8 would only make the message unreadable.
std::string TextFor(const FieldDescriptor& field, Random& random) {
  static const std::vector<std::string> texts = {
      "", "a:1", "peer:1", ":1", "a:", "key", "t", "\xe2\x82\xac", "x:18446744073709551615"};
  if (random.OneIn(3)) return std::string(random.Below(kTextBytesMax), 'x');
  if (field.type() == FieldDescriptor::TYPE_BYTES && random.OneIn(2)) {
    return random.Bytes(random.Below(40));
  }
  return random.Of(texts);
}

void SetOne(Message& message, const FieldDescriptor& field, Random& random) {
  const Reflection& reflection = *message.GetReflection();
  const uint64_t number = random.Extreme();
  switch (field.cpp_type()) {
    case FieldDescriptor::CPPTYPE_INT32:
      return reflection.SetInt32(&message, &field, static_cast<int32_t>(number));
    case FieldDescriptor::CPPTYPE_INT64:
      return reflection.SetInt64(&message, &field, static_cast<int64_t>(number));
    case FieldDescriptor::CPPTYPE_UINT32:
      return reflection.SetUInt32(&message, &field, static_cast<uint32_t>(number));
    case FieldDescriptor::CPPTYPE_UINT64: return reflection.SetUInt64(&message, &field, number);
    case FieldDescriptor::CPPTYPE_BOOL:
      return reflection.SetBool(&message, &field, number % 2 == 0);
    case FieldDescriptor::CPPTYPE_ENUM:
      return reflection.SetEnumValue(&message, &field, static_cast<int>(number));
    case FieldDescriptor::CPPTYPE_STRING:
      return reflection.SetString(&message, &field, TextFor(field, random));
    case FieldDescriptor::CPPTYPE_MESSAGE:
      return ChangeFields(*reflection.MutableMessage(&message, &field), random);
    default: return;
  }
}

void AddOne(Message& message, const FieldDescriptor& field, Random& random) {
  const Reflection& reflection = *message.GetReflection();
  const uint64_t number = random.Extreme();
  switch (field.cpp_type()) {
    case FieldDescriptor::CPPTYPE_INT32:
      return reflection.AddInt32(&message, &field, static_cast<int32_t>(number));
    case FieldDescriptor::CPPTYPE_INT64:
      return reflection.AddInt64(&message, &field, static_cast<int64_t>(number));
    case FieldDescriptor::CPPTYPE_UINT32:
      return reflection.AddUInt32(&message, &field, static_cast<uint32_t>(number));
    case FieldDescriptor::CPPTYPE_UINT64: return reflection.AddUInt64(&message, &field, number);
    case FieldDescriptor::CPPTYPE_BOOL:
      return reflection.AddBool(&message, &field, number % 2 == 0);
    case FieldDescriptor::CPPTYPE_STRING:
      return reflection.AddString(&message, &field, TextFor(field, random));
    case FieldDescriptor::CPPTYPE_MESSAGE:
      return ChangeFields(*reflection.AddMessage(&message, &field), random);
    default: return;
  }
}

void ChangeRepeated(Message& message, const FieldDescriptor& field, Random& random) {
  const Reflection& reflection = *message.GetReflection();
  const int count = reflection.FieldSize(message, &field);
  const bool nested = field.cpp_type() == FieldDescriptor::CPPTYPE_MESSAGE;
  switch (random.Below(4)) {
    case 0:
      if (count > 0) reflection.RemoveLast(&message, &field);
      return;
    case 1:
      if (count > 1) reflection.SwapElements(&message, &field, 0, count - 1);
      return;
    case 2:
      if (count > 0 && nested) {
        const int at = static_cast<int>(random.Below(static_cast<uint64_t>(count)));
        return ChangeFields(*reflection.MutableRepeatedMessage(&message, &field, at), random);
      }
      [[fallthrough]];
    default:
      for (uint64_t more = 1 + (random.OneIn(8) ? random.Below(kCopiesMax) : 0); more > 0; --more) {
        AddOne(message, field, random);
      }
  }
}

}  // namespace

void ChangeFields(Message& message, Random& random) {
  const auto& type = *message.GetDescriptor();
  if (type.field_count() == 0) return;
  for (uint64_t changes = 1 + random.Below(3); changes > 0; --changes) {
    const auto at = static_cast<int>(random.Below(static_cast<uint64_t>(type.field_count())));
    const FieldDescriptor& field = *type.field(at);
    if (field.is_repeated()) {
      ChangeRepeated(message, field, random);
    } else if (random.OneIn(5)) {
      message.GetReflection()->ClearField(&message, &field);
    } else {
      SetOne(message, field, random);
    }
  }
}

}  // namespace mooncake::fuzz
