/** The place in an ascending list, not empty, of the value that is nearest to `wanted`. */
export function nearest(list, wanted) {
  let [low, high] = [0, list.length - 1];
  while (low < high) {
    const middle = (low + high) >> 1;
    if (list[middle] < wanted) low = middle + 1;
    else high = middle;
  }
  return low > 0 && wanted - list[low - 1] <= list[low] - wanted ? low - 1 : low;
}
