# Run by ctest: install, configure, build and run, each in a fresh folder.
file(REMOVE_RECURSE "${SCRATCH}")
function(step)
  execute_process(COMMAND ${ARGN} RESULT_VARIABLE result OUTPUT_VARIABLE output
                  ERROR_VARIABLE output)
  if(NOT result EQUAL 0)
    message(FATAL_ERROR "${ARGN}: ${result}\n${output}")
  endif()
endfunction()

step("${CMAKE_COMMAND}" --install "${BUILD}" --component library --prefix "${SCRATCH}/prefix")
step("${CMAKE_COMMAND}" -S "${STRANGER}" -B "${SCRATCH}/build" -G "${GENERATOR}"
     "-DCMAKE_PREFIX_PATH=${SCRATCH}/prefix" -DCMAKE_BUILD_TYPE=Release)
step("${CMAKE_COMMAND}" --build "${SCRATCH}/build")
step("${SCRATCH}/build/stranger")
